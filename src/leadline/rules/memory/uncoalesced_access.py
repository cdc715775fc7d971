"""MEM102 uncoalesced-access."""

from collections.abc import Iterable

import msgspec

from leadline.model import Access, AccessSample, Constant, Hypothesis, Probe, Rewrite, SourceEdit
from leadline.rules.base import Example, Rule, View, located, metric, raised, seen
from leadline.rules.memory.argument_facts import launch_of
from leadline.rules.memory.column_reduction import column_reduction, tiled_alone
from leadline.rules.memory.index_terms import strides_of_ranges, unit_axes
from leadline.rules.memory.instruction_cost import scaled

POOR = 0.6


class UncoalescedAccess(Rule):
    """Neighbouring lanes do not touch neighbouring addresses although another axis is contiguous.

    What it finds
        Accesses whose groups of 32 lanes use little of the 32-byte sectors they touch, on the best axis the compiler could choose:
        a column walked by one program while the neighbouring program has the neighbouring column; interleaved elements; tiles
        that are narrow along the contiguous axis.
    Why it is slow
        Memory moves whole sectors: with 4 useful bytes of 32, eight times the traffic goes through the caches.
    How it is proved
        Sampled addresses with the launch's real strides give the share of each sector that is used; the source tells which program
        axis has unit stride. The rewrite is compiled as a probe: its loads must become wider.
    Rewrite and its safety
        A reduction over the strided axis by one program per column becomes a 2-D tile over (rows, columns); with few columns the rows
        are split too and a second launch reduces the parts. Sums are taken in another order (changes_numerics for floating point).
    References
        CUDA C++ best practices guide, coalesced access to global memory; triton issue 1172.
    """

    code, slug, cause, family = "MEM102", "uncoalesced-access", "uncoalesced_access", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            facts, sample = view.kernel(launch), view.samples.get(launch.index)
            if facts is None or sample is None:
                continue
            poor = [(a, s) for a in facts.accesses if (s := view.access(launch.index, a.line, a.kind)) is not None and wasteful(s)]
            if not poor:
                continue
            sectors = {id(s): s.total / max(s.sector_efficiency, 1 / 32) for s in sample.accesses}
            everything = sum(sectors.values())
            wasted = sum(sectors[id(s)] - s.total for _, s in poor)
            if everything <= 0 or wasted / everything < 0.05:
                continue
            access, worst = max(poor, key=lambda p: sectors[id(p[1])])
            axes = [x for x in unit_axes(access.expanded) if launch.grid[x] > 1]
            factor = 1 - wasted / everything
            # What the caches keep from DRAM already costs nothing there: never below one reading of the distinct bytes.
            cost = view.costs.get(launch.index)
            distinct = sum(s.unique for s in sample.accesses)
            dram = max(factor, min(1.0, distinct / cost.dram_bytes)) if cost and cost.dram_bytes > 0 else 1.0
            # A load that touches n times the sectors holds the load unit n times as long: about half of the chain's latency.
            low, high = scaled(view, launch, l2=factor, dram=dram, latency=(1 + factor) / 2)
            yield self.hypothesis(
                view,
                launch,
                line=access.line,
                column=access.column,
                end_line=access.end_line,
                key=launch.kernel,
                low=low,
                high=high,
                grade="observed",
                sufficient_level=2,
                claim=_claim(access, worst, axes),
                facts=[
                    metric("sector efficiency", worst.sector_efficiency, "share", launch, access.line),
                    metric("contiguous", float(worst.contiguous), "elements", launch, access.line),
                    seen(f"address `{access.expanded or access.pointer}`", launch.kernel_file, access.line),
                ],
                prediction=f"with lanes along the contiguous axis the launch requests {factor:.0%} of its sectors",
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = launch_of(view, hypothesis)
        bits = view.counter(hypothesis.launch, "global.load.bits", hypothesis.span.line) if launch else None
        if launch is None or not bits or any(getattr(f, "stage", "") == "ptx" for f in hypothesis.facts):
            return hypothesis
        return raised(
            hypothesis, "located", located("ptx", f"load of {bits} bits per thread, strided over lanes", launch, hypothesis.span.line, bits)
        )

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = launch_of(view, hypothesis)
        made = tiled_alone(view, launch, hypothesis.span.line) if launch else None
        if made is not None:
            text, block, rows = made
            yield Probe(
                claim="with lanes along the columns the load gets wider",
                signature="global.load.bits",
                expect="increase",
                stage="ptx",
                grants=(SourceEdit(text=text, label=f"2-D tiles, {block} = {rows}"), Constant(argument=block, value=rows)),
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = launch_of(view, hypothesis)
        for made in column_reduction(view, launch, hypothesis.span.line) if launch else ():
            yield msgspec.structs.replace(made, rule=self.code, finding=f"{self.code}:{hypothesis.key}", prediction=hypothesis.prediction)


def wasteful(sample: AccessSample) -> bool:
    """Whether lanes leave most of their sectors unused: not a broadcast of one address, not a gather, not a handful of lanes."""
    return (
        sample.sector_efficiency * max(sample.repeat, 1.0) < POOR
        and sample.lanes >= 32
        and sample.repeat < 4
        and not sample.indirect
        and sample.active * sample.lanes >= 16
    )


def _claim(access: Access, sample: AccessSample, axes: list[int]) -> str:
    used = f"{sample.sector_efficiency:.0%} of each 32-byte sector is used"
    scales = [s for s in strides_of_ranges(access.expanded) if s]
    if axes:
        walk = f", while lanes walk a stride of `{' * '.join(scales[0])}`" if scales else ""
        return f"program axis {axes[0]} has unit stride{walk}: {used}"
    if sample.contiguous > 1:
        return f"runs of only {sample.contiguous} elements are contiguous: {used}"
    return f"neighbouring lanes are {'`' + ' * '.join(scales[0]) + '` elements' if scales else 'not'} apart in memory: {used}"


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"r65536": dict(rows=65536, cols=512)}
SMALL = {"tiny": dict(rows=8, cols=16), "odd": dict(rows=37, cols=11)}


@triton.jit
def column_max_kernel(x_ptr, y_ptr, cols, rows, ROWS: tl.constexpr):
    c = tl.program_id(0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    for start in range(0, rows, ROWS):
        r = start + tl.arange(0, ROWS)
        x = tl.load(x_ptr + r * cols + c, mask=r < rows, other=float("-inf"))
        best = tl.maximum(best, x)  # one column per program
    tl.store(y_ptr + c, tl.max(best, 0))


def launch(x):
    rows, cols = x.shape
    y = torch.empty(cols, device=x.device, dtype=torch.float32)
    column_max_kernel[(cols,)](x, y, cols, rows, ROWS=1024)
    return y


def reference(x):
    return x.amax(0)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device))
"""

AFTER = """\
import torch
import triton
import triton.language as tl

CASES = {"r65536": dict(rows=65536, cols=512)}
SMALL = {"tiny": dict(rows=8, cols=16), "odd": dict(rows=37, cols=11)}


@triton.jit
def column_max_kernel(x_ptr, y_ptr, cols, rows, ROWS: tl.constexpr, partial, part_rows, COLS: tl.constexpr):
    c = (tl.program_id(0) * COLS + tl.arange(0, COLS))[None, :]
    best = tl.full((ROWS, COLS), float("-inf"), tl.float32)
    for start in range(tl.program_id(1) * part_rows, tl.minimum((tl.program_id(1) + 1) * part_rows, rows), ROWS):
        r = start + tl.arange(0, ROWS)[:, None]
        x = tl.load(x_ptr + r * cols + c, mask=(r < rows) & (c < cols), other=float("-inf"))
        best = tl.maximum(best, x)  # one column per program
    tl.store(partial + tl.program_id(1) * cols + c, tl.max(best, axis=0, keep_dims=True), mask=c < cols)


@triton.jit
def column_max_kernel_finish(x_ptr, y_ptr, cols, rows, ROWS: tl.constexpr, partial, parts, COLS: tl.constexpr):
    c = (tl.program_id(0) * COLS + tl.arange(0, COLS))[None, :]
    part = tl.arange(0, ROWS)[:, None]
    best = tl.load(partial + part * cols + c, mask=(part < parts) & (c < cols), other=float("-inf"))
    tl.store(y_ptr + c, tl.max(best, 0, keep_dims=True), mask=c < cols)


def launch(x):
    rows, cols = x.shape
    y = torch.empty(cols, device=x.device, dtype=torch.float32)
    # rows per part: a multiple of the tile, about 528 programs in all
    part_rows = triton.cdiv(triton.cdiv(rows, max(1, 528 // triton.cdiv(cols, 64))), 32) * 32
    parts = triton.cdiv(rows, part_rows)
    partial = torch.empty((parts, cols), device=x.device, dtype=torch.float32)
    column_max_kernel[(triton.cdiv(cols, 64), parts)](x, y, cols, rows, ROWS=32, partial=partial, part_rows=part_rows, COLS=64)
    column_max_kernel_finish[(triton.cdiv(cols, 16),)](x_ptr=x, y_ptr=y, cols=cols, rows=rows, partial=partial, parts=parts, ROWS=triton.next_power_of_2(parts), COLS=16)
    return y


def reference(x):
    return x.amax(0)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device))
"""  # noqa: E501

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"r65536": dict(rows=65536, cols=512)}
SMALL = {"tiny": dict(rows=8, cols=16), "odd": dict(rows=37, cols=11)}


@triton.jit
def row_max_kernel(x_ptr, y_ptr, cols, COLS: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, COLS)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=float("-inf"))
    tl.store(y_ptr + row, tl.max(x, 0))


def launch(x):
    rows, cols = x.shape
    y = torch.empty(rows, device=x.device, dtype=torch.float32)
    row_max_kernel[(rows,)](x, y, cols, COLS=triton.next_power_of_2(cols))
    return y


def reference(x):
    return x.amax(1)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device))
"""

UncoalescedAccess.examples = (
    Example(title="one program per column", before=BEFORE, line=15, grade="confirmed", after=AFTER),
    Example(title="one program per row", before=CLEAN),
)

"""MEM103 div-mod-indexing."""

from collections.abc import Iterable

import msgspec

from leadline.model import Hypothesis, KernelFacts, Launch, Probe, Rewrite, SourceEdit
from leadline.rules.base import Example, Rule, View, located, metric, raised, seen
from leadline.rules.memory.argument_facts import launch_of
from leadline.rules.memory.divisions import division_cost, is_wide, simplified, tile_divisions
from leadline.rules.memory.flat_grid import row_tiled
from leadline.rules.memory.instruction_cost import elements, gain, instructions_at, issue_us, straight_issue_us

TILES = (2048, 1024, 4096)  # elements of a program after the rewrite, best guess first


class DivModIndexing(Rule):
    """Per-element integer division and remainder compute addresses or masks.

    What it finds
        `//` and `%` of tiles by sizes: flat indices taken apart into rows and columns, rows into planes.
    Why it is slow
        The device has no integer division: a runtime divisor costs about 11 instructions per element and quotient (its reciprocal is
        hoisted), a compile-time one about 5, a runtime one of 64-bit integers about 26, while a memory-bound kernel has some 10
        instructions per element to spare. Divided addresses also hide contiguity from the axis analysis.
    How it is proved
        The machine code shows the instructions of those lines; the rewritten kernel is compiled and must have fewer of them.
    Rewrite and its safety
        Exact identities of floor division on non-negative indices (`(x // N) * N + x % N = x`, `(N // 2) * (x // N) + x % N // 2 = x // 2`
        for a multiple N of 2, ...); or a grid over (rows, columns), so that rows and columns need no division. The second keeps every
        element's arithmetic and its bound, and masks the columns.
    References
        PyTorch issue 127581; FlagGems pull request 2903.
    """

    code, slug, cause, family = "MEM103", "div-mod-indexing", "div_mod_indexing", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            facts = view.kernel(launch)
            divisions = tile_divisions(facts) if facts else []
            costly = [d for d in divisions if division_cost(d, launch) > 2]
            if facts is None or not costly:
                continue
            per_element = _per_element(launch, facts)
            before, after = _issue(view, launch, facts, per_element)
            low, high = gain(view, launch, before, after)
            if launch.index not in view.costs:
                low, high = 1.0, 1.2
            first = max(costly, key=lambda d: division_cost(d, launch, facts))
            listed = ", ".join(dict.fromkeys(f"`{d.text}`" for d in divisions[:4]))
            runtime = any(division_cost(d, launch) > 6 for d in divisions)
            wide = any(is_wide(d, launch, facts) for d in divisions)
            yield self.hypothesis(
                view,
                launch,
                line=first.line,
                column=first.column,
                end_line=first.end_line,
                key=launch.kernel,
                low=low,
                high=high,
                grade="observed" if launch.index in view.samples else "suspected",
                sufficient_level=3,
                claim=f"every element pays {len(divisions)} integer division(s) ({listed}), about {per_element:.0f} instructions"
                + (" by runtime values" if runtime else "")
                + (", of 64-bit integers" if wide else ""),
                facts=[seen(f"`{d.text}` divides a tile", launch.kernel_file, d.line) for d in divisions[:4]]
                + [
                    metric("instructions for division", per_element, "per element", launch, first.line, collector="source"),
                    metric("instruction issue", before, "us", launch),
                    metric("without the divisions", after, "us", launch),
                ],
                prediction=f"the launch issues {1 - after / before:.0%} fewer instructions" if before > 0 else "fewer instructions",
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = launch_of(view, hypothesis)
        facts = view.kernel(launch) if launch else None
        if launch is None or facts is None or launch.index not in view.compiled:
            return hypothesis
        lines = {d.line for d in tile_divisions(facts)}
        count = instructions_at(view, launch, lines)
        if not count or hypothesis.grade not in ("suspected", "observed"):
            return hypothesis
        low, high = gain(view, launch, *_issue(view, launch, facts, _per_element(launch, facts)))
        estimate = self.hypothesis(view, launch, line=hypothesis.span.line, claim="", low=low, high=high).estimate
        hypothesis = msgspec.structs.replace(hypothesis, estimate=estimate)
        return raised(hypothesis, "located", located("sass", "instructions on the lines that divide", launch, hypothesis.span.line, count))

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = launch_of(view, hypothesis)
        facts = view.kernel(launch) if launch else None
        if launch is None or facts is None:
            return
        made = simplified(view, launch, facts)
        text = made[0] if made else row_tiled(view, launch, facts, TILES[0], defaults=True)
        if text is not None:
            signature, stage = _signature(view, launch)
            yield Probe(
                claim="without the divisions fewer instructions are left",
                grants=(SourceEdit(text=text, label="index expressions without division"),),
                signature=signature,
                stage=stage,
                expect="decrease",
                launch=launch.index,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = launch_of(view, hypothesis)
        facts = view.kernel(launch) if launch else None
        if launch is None or facts is None:
            return
        made = simplified(view, launch, facts)
        signature = _signature(view, launch)[0]
        if made is not None:
            yield Rewrite(
                id="",
                rule=self.code,
                title="simplify the index expressions",
                source=made[0],
                precondition=made[1],
                signature=signature,
                expect="decrease",
                finding=f"{self.code}:{hypothesis.key}",
                prediction=hypothesis.prediction,
            )
        for tile in TILES:
            source = row_tiled(view, launch, facts, tile)
            if source is not None:
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"grid over rows and columns, {tile} elements per program",
                    source=source,
                    precondition="the kernel is elementwise over one flat index and masks it by its total",
                    signature=signature,
                    expect="decrease",
                    choices={"tile": tile},
                    finding=f"{self.code}:{hypothesis.key}",
                    prediction=hypothesis.prediction,
                )


def _per_element(launch: Launch, facts: KernelFacts) -> float:
    """Instructions that division costs each element."""
    return sum(division_cost(d, launch, facts) for d in tile_divisions(facts))


def _signature(view: View, launch: Launch) -> tuple[str, str]:
    """The counter that the rewrite moves, and the stage that has it: quotients by runtime values are seen in the IR already."""
    if view.counter(launch.index, "int_div"):
        return "int_div", "ttgir"
    return "instructions", "sass"


def _issue(view: View, launch: Launch, facts: KernelFacts, per_element: float) -> tuple[float, float]:
    """Instruction issue of the launch in us, with and without the divisions: from the machine code where it is straight-line, else
    from the number of accesses and operations."""
    total = elements(view, launch)
    division = issue_us(total / 32 * per_element, view.sms)
    straight = straight_issue_us(view, launch)
    if straight is None:
        everything = division + issue_us(total / 32 * (3 * len(facts.accesses) + 0.5 * len(facts.operations) + 4), view.sms)
        return everything, everything - division
    # What stands on those lines bounds what division can cost there.
    lines = {d.line for d in tile_divisions(facts)}
    there = instructions_at(view, launch, lines) / max(view.counter(launch.index, "instructions") or 1, 1)
    return straight, straight - min(division, straight * there)


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"r16384": dict(rows=16384, cols=4096)}
SMALL = {"tiny": dict(rows=4, cols=64), "odd": dict(rows=7, cols=45)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def bias_kernel(x_ptr, bias_ptr, y_ptr, n, cols, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    row = i // cols  # the bias is one value per row
    col = i % cols
    x = tl.load(x_ptr + i, mask=mask).to(tl.float32)
    bias = tl.load(bias_ptr + row, mask=mask)
    tl.store(y_ptr + i, tl.where(col < row, x + bias, x), mask=mask)


def launch(x, bias):
    y = torch.empty_like(x)
    n, cols = x.numel(), x.shape[1]
    bias_kernel[(triton.cdiv(n, 1024),)](x, bias, y, n, cols, BLOCK=1024)
    return y


def reference(x, bias):
    rows, cols = x.shape
    below = torch.arange(cols, device=x.device)[None, :] < torch.arange(rows, device=x.device)[:, None]
    return torch.where(below, x.float() + bias[:, None], x.float()).to(x.dtype)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    x = torch.randn(rows, cols, device=device, dtype=torch.float16)
    return dict(x=x, bias=torch.randn(rows, device=device))
"""

AFTER = """\
import torch
import triton
import triton.language as tl

CASES = {"r16384": dict(rows=16384, cols=4096)}
SMALL = {"tiny": dict(rows=4, cols=64), "odd": dict(rows=7, cols=45)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def bias_kernel(x_ptr, bias_ptr, y_ptr, n, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # the bias is one value per row
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    i = row * cols + col
    mask = (col < cols) & (i < n)
    x = tl.load(x_ptr + i, mask=mask).to(tl.float32)
    bias = tl.load(bias_ptr + row, mask=row * cols < n)
    tl.store(y_ptr + i, tl.where(col < row, x + bias, x), mask=mask)


def launch(x, bias):
    y = torch.empty_like(x)
    n, cols = x.numel(), x.shape[1]
    cols_2 = min(triton.next_power_of_2(cols), 2048)
    rows_2 = max(1, 2048 // cols_2)
    bias_kernel[(triton.cdiv(triton.cdiv(n, cols), rows_2), triton.cdiv(cols, cols_2))](x, bias, y, n, cols, ROWS=rows_2, COLS=cols_2)
    return y


def reference(x, bias):
    rows, cols = x.shape
    below = torch.arange(cols, device=x.device)[None, :] < torch.arange(rows, device=x.device)[:, None]
    return torch.where(below, x.float() + bias[:, None], x.float()).to(x.dtype)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    x = torch.randn(rows, cols, device=device, dtype=torch.float16)
    return dict(x=x, bias=torch.randn(rows, device=device))
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"r16384": dict(rows=16384, cols=4096)}
SMALL = {"tiny": dict(rows=4, cols=64), "odd": dict(rows=7, cols=45)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def bias_kernel(x_ptr, bias_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + col, mask=col < cols).to(tl.float32)
    bias = tl.load(bias_ptr + row)
    tl.store(y_ptr + row * cols + col, tl.where(col < row, x + bias, x), mask=col < cols)


def launch(x, bias):
    y = torch.empty_like(x)
    rows, cols = x.shape
    bias_kernel[(rows, triton.cdiv(cols, 1024))](x, bias, y, cols, BLOCK=1024)
    return y


def reference(x, bias):
    rows, cols = x.shape
    below = torch.arange(cols, device=x.device)[None, :] < torch.arange(rows, device=x.device)[:, None]
    return torch.where(below, x.float() + bias[:, None], x.float()).to(x.dtype)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    x = torch.randn(rows, cols, device=device, dtype=torch.float16)
    return dict(x=x, bias=torch.randn(rows, device=device))
"""

DivModIndexing.examples = (
    Example(title="a flat index taken apart", before=BEFORE, line=14, grade="confirmed", after=AFTER),
    Example(title="a grid over rows and columns", before=CLEAN),
)

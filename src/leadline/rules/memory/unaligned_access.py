"""MEM101 unaligned-access."""

from collections.abc import Iterable

import msgspec

from leadline.model import Constant, Divisible, Hypothesis, Launch, Probe, Rewrite
from leadline.rules.base import Example, Rule, View, located, metric, raised, refuted, seen
from leadline.rules.memory.access_width import Narrow, narrow_accesses, width_gain
from leadline.rules.memory.argument_facts import argument_probe, constexpr_rewrite, unit_rewrite


class UnalignedAccess(Rule):
    """A stride, size or pointer without a recorded divisibility makes accesses narrow.

    What it finds
        Loads and stores whose sampled addresses are contiguous and aligned for at least twice the width they are compiled with, where
        the address contains runtime integers or pointers that are no multiple of 16.
    Why it is slow
        The JIT records only "divisible by 16" or nothing. With a stride of 72 the compiler must assume that rows start anywhere and
        moves one element per thread: up to 8 times the memory instructions, each with its own address and mask.
    How it is proved
        Sampled addresses give the possible width, the machine code the actual one; the arguments are granted as constants (or as
        divisible) one set at a time and the access must become wider.
    Rewrite and its safety
        The arguments become `tl.constexpr` (one compilation per value), or keep being runtime values whose largest power-of-two
        divisor is passed along as a constexpr: `stride // UNIT * UNIT` equals `stride` for every stride. Both are exact.
    References
        Triton pull request 10389; triton AxisInfo analysis and Coalesce pass.
    """

    code, slug, cause, family = "MEM101", "unaligned-access", "unaligned_access", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            narrow = [n for n in narrow_accesses(view, launch) if n.address]
            if narrow:
                yield self._hypothesis(view, launch, narrow)

    def _hypothesis(self, view: View, launch: Launch, narrow: list[Narrow]) -> Hypothesis:
        low, high = width_gain(view, launch, narrow)
        worst = max(narrow, key=lambda n: n.sample.total * n.possible / n.width)
        names = _names(narrow)
        values = ", ".join(
            f"{n} = {a.value}" if a.tensor is None else f"{n} at an odd offset" for n in names if (a := launch.argument(n)) is not None
        )
        return self.hypothesis(
            view,
            launch,
            line=worst.access.line,
            column=worst.access.column,
            end_line=worst.access.end_line,
            key=launch.kernel,
            low=low,
            high=high,
            grade="observed" if view.samples.get(launch.index) else "suspected",
            claim=f"the addresses are contiguous and aligned for {worst.possible}-byte accesses, but no divisibility is known of {values}: "
            f"{len(narrow)} access(es) of {launch.kernel} move {worst.width} bytes at a time",
            facts=[
                fact
                for n in narrow[:4]
                for fact in (
                    metric("possible width", float(n.possible), "bytes", launch, n.access.line),
                    metric("contiguous", float(n.sample.contiguous), "elements", launch, n.access.line),
                )
            ]
            + [seen(f"`{n.access.text}` depends on {', '.join(n.address)}", launch.kernel_file, n.access.line) for n in narrow[:2]],
            prediction=f"with {', '.join(names)} known the access in line {worst.access.line} moves {worst.possible} bytes per thread",
            sufficient_level=4,
        )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = _launch(view, hypothesis)
        if launch is None or launch.index not in view.compiled:
            return hypothesis
        narrow = [n for n in narrow_accesses(view, launch) if n.compiled and n.address]
        if not narrow:
            return refuted(hypothesis, "the machine code already moves as many bytes per thread as the addresses allow")
        worst = next((n for n in narrow if n.access.line == hypothesis.span.line), narrow[0])
        low, high = width_gain(view, launch, narrow)
        again = self.hypothesis(view, launch, line=worst.access.line, claim="", low=low, high=high)
        fact = located("ptx", f"{worst.access.kind} of {worst.width} bytes per thread", launch, worst.access.line, worst.width * 8)
        return raised(msgspec.structs.replace(hypothesis, estimate=again.estimate), "located", fact)

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = _launch(view, hypothesis)
        if launch is None:
            return
        narrow = [n for n in narrow_accesses(view, launch) if n.address]
        if not narrow:
            return
        names = tuple(dict.fromkeys(name for n in narrow for name in (*n.address, *n.mask, *n.divisors)))
        line = next((n.access.line for n in narrow if n.access.line == hypothesis.span.line), narrow[0].access.line)
        kind = next(n.access.kind for n in narrow if n.access.line == line)
        grants = tuple(argument_probe(launch, name) for name in names)
        yield Probe(
            claim=f"with {', '.join(names)} known the {kind} gets wider",
            grants=grants,
            line=line,
            expect="increase",
            stage="ptx",
            signature=f"global.{kind}.bits",
            launch=launch.index,
        )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = _launch(view, hypothesis)
        if launch is None:
            return
        narrow = [n for n in narrow_accesses(view, launch) if n.address]
        names = _needed(view, hypothesis) or tuple(dict.fromkeys(name for n in narrow for name in (*n.address, *n.mask, *n.divisors)))
        integers = tuple(n for n in names if (a := launch.argument(n)) is not None and a.tensor is None)
        if not integers:
            return
        for made in (constexpr_rewrite(view, launch, integers), unit_rewrite(view, launch, integers)):
            if made is not None:
                yield msgspec.structs.replace(
                    made,
                    rule=self.code,
                    signature=f"global.{narrow[0].access.kind if narrow else 'load'}.bits",
                    expect="increase",
                    finding=f"{self.code}:{hypothesis.key}",
                    prediction=hypothesis.prediction,
                )


def _names(narrow: list[Narrow]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for n in narrow for name in n.address))


def _launch(view: View, hypothesis: Hypothesis) -> Launch | None:
    return next((x for x in view.launches if x.index == hypothesis.launch), None)


def _needed(view: View, hypothesis: Hypothesis) -> tuple[str, ...]:
    """Arguments in the minimal set of a probe that flipped."""
    for outcome in view.outcomes:
        if outcome.flipped and outcome.launch == hypothesis.launch and outcome.probe.signature.startswith("global."):
            minimal = set(outcome.minimal)
            granted = [g for g in outcome.probe.grants if isinstance(g, Divisible | Constant)]
            chosen = tuple(g.argument for g in granted if not minimal or g.describe() in minimal)
            if chosen:
                return chosen
    return ()


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"c72": dict(rows=1 << 20, cols=72)}
SMALL = {"tiny": dict(rows=8, cols=24), "odd": dict(rows=37, cols=11)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def center_kernel(x_ptr, y_ptr, rows, cols, stride, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r < rows)[:, None] & (c < cols)[None, :]
    # rows are stride elements apart
    x = tl.load(x_ptr + r[:, None] * stride + c[None, :], mask=mask, other=0.0).to(tl.float32)
    y = x - tl.sum(x, 1)[:, None] / cols
    tl.store(y_ptr + r[:, None] * stride + c[None, :], y.to(tl.float16), mask=mask)


def launch(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    center_kernel[(triton.cdiv(rows, 32),)](x, y, rows, cols, x.stride(0), R=32, C=triton.next_power_of_2(cols), num_warps=4)
    return y


def reference(x):
    xf = x.float()
    return (xf - xf.mean(1, keepdim=True)).to(x.dtype)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device, dtype=torch.float16))
"""

AFTER = """\
import torch
import triton
import triton.language as tl

CASES = {"c72": dict(rows=1 << 20, cols=72)}
SMALL = {"tiny": dict(rows=8, cols=24), "odd": dict(rows=37, cols=11)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def center_kernel(x_ptr, y_ptr, rows, cols: tl.constexpr, stride: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r < rows)[:, None] & (c < cols)[None, :]
    # rows are stride elements apart
    x = tl.load(x_ptr + r[:, None] * stride + c[None, :], mask=mask, other=0.0).to(tl.float32)
    y = x - tl.sum(x, 1)[:, None] / cols
    tl.store(y_ptr + r[:, None] * stride + c[None, :], y.to(tl.float16), mask=mask)


def launch(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    center_kernel[(triton.cdiv(rows, 32),)](x, y, rows, cols, x.stride(0), R=32, C=triton.next_power_of_2(cols), num_warps=4)
    return y


def reference(x):
    xf = x.float()
    return (xf - xf.mean(1, keepdim=True)).to(x.dtype)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device, dtype=torch.float16))
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"c64": dict(rows=1 << 20, cols=64)}
SMALL = {"tiny": dict(rows=8, cols=24), "odd": dict(rows=37, cols=11)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def center_kernel(x_ptr, y_ptr, rows, cols, stride, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r < rows)[:, None] & (c < cols)[None, :]
    # rows are stride elements apart
    x = tl.load(x_ptr + r[:, None] * stride + c[None, :], mask=mask, other=0.0).to(tl.float32)
    y = x - tl.sum(x, 1)[:, None] / cols
    tl.store(y_ptr + r[:, None] * stride + c[None, :], y.to(tl.float16), mask=mask)


def launch(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    center_kernel[(triton.cdiv(rows, 32),)](x, y, rows, cols, x.stride(0), R=32, C=triton.next_power_of_2(cols), num_warps=4)
    return y


def reference(x):
    xf = x.float()
    return (xf - xf.mean(1, keepdim=True)).to(x.dtype)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device, dtype=torch.float16))
"""

UnalignedAccess.examples = (
    Example(title="rows of 72 halves", before=BEFORE, line=16, grade="confirmed", after=AFTER),
    Example(title="rows of 64 halves", before=CLEAN),
)

"""MEM109 runtime-stride."""

from collections.abc import Iterable

import msgspec

from leadline.model import Constant, Hypothesis, Launch, Probe, Rewrite
from leadline.rules.base import Example, Rule, View, located, metric, raised, refuted, seen
from leadline.rules.memory.access_width import width_at
from leadline.rules.memory.argument_facts import constexpr_rewrite, launch_of
from leadline.rules.memory.index_terms import strides_of_ranges
from leadline.rules.memory.instruction_cost import access_us, gain, possible_width


class RuntimeStride(Rule):
    """The innermost stride is a runtime value, so the compiler does not know that neighbouring lanes are neighbours in memory.

    What it finds
        A tile index multiplied by a parameter whose value is 1 in this launch and that the JIT did not fold into a constant
        (`do_not_specialize`, a value computed in the kernel, a stride loaded from memory).
    Why it is slow
        Contiguity is unknown on every axis: accesses are scalar, and the order of the axes is picked blindly, which costs coalescing too.
    How it is proved
        The stride is granted as the constant 1: the access must become wider.
    Rewrite and its safety
        The stride becomes a constexpr: exact, one compilation per value.
    References
        triton Coalesce pass, getOrderFromContiguity.
    """

    code, slug, cause, family = "MEM109", "runtime-stride", "runtime_stride", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            for name, lines in _unit_strides(view, launch).items():
                samples = [a for line in lines if (a := view.access(launch.index, line)) is not None and a.lanes >= 64]
                if not samples:
                    continue
                before = sum(access_us(a, width_at(view, launch, a.line, a.kind) or a.itemsize, launch.programs, view.sms) for a in samples)
                after = sum(access_us(a, possible_width(a), launch.programs, view.sms) for a in samples)
                low, high = gain(view, launch, before, after)
                yield self.hypothesis(
                    view,
                    launch,
                    line=samples[0].line,
                    key=f"{launch.kernel}:{name}",
                    low=low,
                    high=high,
                    grade="observed",
                    sufficient_level=4,
                    claim=f"the innermost stride `{name}` is 1, but not to the compiler: {len(samples)} access(es) lose contiguity",
                    facts=[
                        metric("contiguous", float(samples[0].contiguous), "elements", launch, samples[0].line),
                        seen(f"`{name}` = 1 scales a tile index and is not specialised", launch.kernel_file, samples[0].line),
                    ],
                    prediction=f"with {name} = 1 known the accesses move up to {max(map(possible_width, samples))} bytes per thread",
                )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = launch_of(view, hypothesis)
        sample = view.access(hypothesis.launch, hypothesis.span.line)
        if launch is None or sample is None or launch.index not in view.compiled:
            return hypothesis
        width = width_at(view, launch, sample.line, sample.kind)
        if width is None:
            return hypothesis
        if width >= possible_width(sample):
            return refuted(hypothesis, f"the access already moves {width} bytes per thread")
        return raised(hypothesis, "located", located("ptx", f"{sample.kind} of {width} bytes per thread", launch, sample.line, width * 8))

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        sample = view.access(hypothesis.launch, hypothesis.span.line)
        if sample is not None:
            name = hypothesis.key.rsplit(":", 1)[-1]
            yield Probe(
                claim=f"with {name} constant the access gets wider",
                grants=(Constant(argument=name, value=1),),
                line=sample.line,
                expect="increase",
                stage="ptx",
                signature=f"global.{'store' if sample.kind == 'store' else 'load'}.bits",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = launch_of(view, hypothesis)
        made = constexpr_rewrite(view, launch, (hypothesis.key.rsplit(":", 1)[-1],)) if launch else None
        if made is not None:
            yield msgspec.structs.replace(
                made,
                rule=self.code,
                signature="global.load.bits",
                expect="increase",
                finding=f"{self.code}:{hypothesis.key}",
                prediction=hypothesis.prediction,
            )


def _unit_strides(view: View, launch: Launch) -> dict[str, list[int]]:
    """Parameters equal to 1, not folded, that scale a range of an address -> lines of those accesses."""
    facts = view.kernel(launch)
    found: dict[str, list[int]] = {}
    for access in facts.accesses if facts else ():
        for scale in strides_of_ranges(access.expanded or access.pointer):
            for name in scale:
                argument = launch.argument(name)
                if (
                    argument is not None
                    and argument.value == 1
                    and not argument.constexpr
                    and not argument.folded
                    and argument.tensor is None
                ):
                    found.setdefault(name, []).append(access.line)
    return found


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"c64": dict(rows=1 << 20, cols=64)}
SMALL = {"tiny": dict(rows=8, cols=24), "odd": dict(rows=37, cols=11)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit(do_not_specialize=["inner"])
def center_kernel(x_ptr, y_ptr, rows, cols, stride, inner, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r < rows)[:, None] & (c < cols)[None, :]
    # neighbours in a row are inner elements apart
    x = tl.load(x_ptr + r[:, None] * stride + c[None, :] * inner, mask=mask, other=0.0).to(tl.float32)
    y = x - tl.sum(x, 1)[:, None] / cols
    tl.store(y_ptr + r[:, None] * stride + c[None, :], y.to(tl.float16), mask=mask)


def launch(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    center_kernel[(triton.cdiv(rows, 32),)](x, y, rows, cols, x.stride(0), x.stride(1), R=32, C=triton.next_power_of_2(cols), num_warps=4)
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

CASES = {"c64": dict(rows=1 << 20, cols=64)}
SMALL = {"tiny": dict(rows=8, cols=24), "odd": dict(rows=37, cols=11)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit(do_not_specialize=["inner"])
def center_kernel(x_ptr, y_ptr, rows, cols, stride, inner: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r < rows)[:, None] & (c < cols)[None, :]
    # neighbours in a row are inner elements apart
    x = tl.load(x_ptr + r[:, None] * stride + c[None, :] * inner, mask=mask, other=0.0).to(tl.float32)
    y = x - tl.sum(x, 1)[:, None] / cols
    tl.store(y_ptr + r[:, None] * stride + c[None, :], y.to(tl.float16), mask=mask)


def launch(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    center_kernel[(triton.cdiv(rows, 32),)](x, y, rows, cols, x.stride(0), x.stride(1), R=32, C=triton.next_power_of_2(cols), num_warps=4)
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
def center_kernel(x_ptr, y_ptr, rows, cols, stride, inner, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r < rows)[:, None] & (c < cols)[None, :]
    # neighbours in a row are inner elements apart
    x = tl.load(x_ptr + r[:, None] * stride + c[None, :] * inner, mask=mask, other=0.0).to(tl.float32)
    y = x - tl.sum(x, 1)[:, None] / cols
    tl.store(y_ptr + r[:, None] * stride + c[None, :], y.to(tl.float16), mask=mask)


def launch(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    center_kernel[(triton.cdiv(rows, 32),)](x, y, rows, cols, x.stride(0), x.stride(1), R=32, C=triton.next_power_of_2(cols), num_warps=4)
    return y


def reference(x):
    xf = x.float()
    return (xf - xf.mean(1, keepdim=True)).to(x.dtype)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device, dtype=torch.float16))
"""

RuntimeStride.examples = (
    Example(title="an unspecialised inner stride", before=BEFORE, line=16, grade="confirmed", after=AFTER),
    Example(title="an inner stride that the JIT folds", before=CLEAN),
)

"""MEM104 mask-blocks-vectorisation."""

from collections.abc import Iterable

import msgspec

from leadline.model import Hypothesis, Probe, Rewrite
from leadline.rules.base import Example, Rule, View, located, metric, raised, refuted, seen
from leadline.rules.memory.access_width import narrow_accesses, width_gain
from leadline.rules.memory.argument_facts import argument_probe, constexpr_rewrite, launch_of, unit_rewrite


class MaskBlocksVectorisation(Rule):
    """The bound of a mask has no known divisibility, so the mask may change inside a vector and the access is split.

    What it finds
        Masked loads and stores whose address is known to be wide, but whose mask compares against a runtime size that is no multiple of 16.
    Why it is slow
        The layout still gives a thread 8 neighbouring elements; each is moved by its own predicated instruction.
    How it is proved
        The mask's bound is granted as divisible by 16: the access at that line must become wider.
    Rewrite and its safety
        The bound's largest power-of-two divisor is passed along as a constexpr (`n // UNIT * UNIT` equals `n`), or the bound becomes a
        constexpr. Neither helps an odd bound: that needs a split into full tiles and a tail.
    References
        triton LoadStoreOpToLLVM, getMaskAlignment.
    """

    code, slug, cause, family = "MEM104", "mask-blocks-vectorisation", "mask_blocks_vectorisation", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            narrow = [n for n in narrow_accesses(view, launch) if n.mask and not n.address and not n.divisors]
            if not narrow:
                continue
            low, high = width_gain(view, launch, narrow)
            worst = max(narrow, key=lambda n: n.sample.total)
            names = tuple(dict.fromkeys(name for n in narrow for name in n.mask))
            values = ", ".join(f"{n} = {a.value}" for n in names if (a := launch.argument(n)) is not None)
            yield self.hypothesis(
                view,
                launch,
                line=worst.access.line,
                column=worst.access.column,
                end_line=worst.access.end_line,
                key=launch.kernel,
                low=low,
                high=high,
                grade="observed",
                sufficient_level=4,
                claim=f"the mask `{worst.access.mask}` may change inside a vector, because no divisibility is known of {values}: "
                f"{worst.width} bytes are moved at a time where {worst.possible} would do",
                facts=[
                    metric("possible width", float(worst.possible), "bytes", launch, worst.access.line),
                    seen(
                        f"the mask of `{worst.access.text}` compares against {', '.join(worst.mask)}", launch.kernel_file, worst.access.line
                    ),
                ],
                prediction=f"with {', '.join(names)} divisible by 16 the access moves {worst.possible} bytes per thread",
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = launch_of(view, hypothesis)
        if launch is None or launch.index not in view.compiled:
            return hypothesis
        narrow = [n for n in narrow_accesses(view, launch) if n.compiled and n.mask and not n.address]
        if not narrow:
            return refuted(hypothesis, "the machine code already moves as many bytes per thread as the addresses allow")
        worst = narrow[0]
        return raised(
            hypothesis,
            "located",
            located("ptx", f"{worst.access.kind} of {worst.width} bytes per thread", launch, worst.access.line, worst.width * 8),
        )

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = launch_of(view, hypothesis)
        if launch is None:
            return
        narrow = [n for n in narrow_accesses(view, launch) if n.mask and not n.address and not n.divisors]
        for n in narrow[:1]:
            yield Probe(
                claim="with the bound's divisibility known the access gets wider",
                line=n.access.line,
                expect="increase",
                stage="ptx",
                grants=tuple(argument_probe(launch, name, divisible=True) for name in n.mask),
                signature=f"global.{n.access.kind}.bits",
                launch=launch.index,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = launch_of(view, hypothesis)
        if launch is None:
            return
        narrow = [n for n in narrow_accesses(view, launch) if n.mask and not n.address and not n.divisors]
        names = tuple(dict.fromkeys(name for n in narrow for name in n.mask))
        for made in (unit_rewrite(view, launch, names), constexpr_rewrite(view, launch, names)):
            if made is not None:
                yield msgspec.structs.replace(
                    made,
                    rule=self.code,
                    signature=f"global.{narrow[0].access.kind}.bits",
                    expect="increase",
                    finding=f"{self.code}:{hypothesis.key}",
                    prediction=hypothesis.prediction,
                )


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"n": dict(n=(1 << 26) + 8)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def polynomial_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # n bounds the last block
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float32)
    tl.store(y_ptr + i, (x * x + x).to(tl.float16), mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    polynomial_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def reference(x):
    xf = x.float()
    return (xf * xf + xf).to(x.dtype)


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device).half())
"""

AFTER = """\
import torch
import triton
import triton.language as tl
import math

CASES = {"n": dict(n=(1 << 26) + 8)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def polynomial_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, N_UNIT: tl.constexpr):
    n = n // N_UNIT * N_UNIT  # exact: the unit divides it
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # n bounds the last block
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float32)
    tl.store(y_ptr + i, (x * x + x).to(tl.float16), mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    polynomial_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024, N_UNIT=math.gcd(x.numel(), 16))
    return y


def reference(x):
    xf = x.float()
    return (xf * xf + xf).to(x.dtype)


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device).half())
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"n": dict(n=1 << 26)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def polynomial_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # n bounds the last block
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float32)
    tl.store(y_ptr + i, (x * x + x).to(tl.float16), mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    polynomial_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def reference(x):
    xf = x.float()
    return (xf * xf + xf).to(x.dtype)


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device).half())
"""

MaskBlocksVectorisation.examples = (
    Example(title="a bound divisible by 8 only", before=BEFORE, line=14, grade="confirmed", after=AFTER),
    Example(title="a bound divisible by 16", before=CLEAN),
)

"""MEM107 contiguity-unknown."""

from collections.abc import Iterable

import msgspec

from leadline.model import Hypothesis, Launch, Probe, Rewrite
from leadline.rules.base import Example, Rule, View, located, metric, raised, refuted, seen
from leadline.rules.memory.access_width import Narrow, narrow_accesses, width_gain
from leadline.rules.memory.argument_facts import argument_probe, constexpr_rewrite, launch_of, unit_rewrite


class ContiguityUnknown(Rule):
    """Addresses are contiguous, but a modulo or a division on the way hides it from the axis analysis.

    What it finds
        Accesses whose sampled addresses form long runs, while the address contains `%` or `//` of a tile by a runtime value that is no
        multiple of 16.
    Why it is slow
        Contiguity through `x % n` is the greatest common divisor of the tile's contiguity and the divisibility of `n`: 1 when nothing is
        known of `n`. The access is compiled element by element.
    How it is proved
        The divisor is granted as a constant or as divisible by 16: the access must become wider.
    Rewrite and its safety
        The divisor becomes a constexpr, or its power-of-two divisor is passed along. Both are exact. (`tl.max_contiguous` after a modulo
        is wrong when a tile wraps inside a vector and is never proposed.)
    References
        triton AxisInfo, RemOpAxisInfoVisitor.
    """

    code, slug, cause, family = "MEM107", "contiguity-unknown", "contiguity_unknown", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            narrow = _hidden(view, launch)
            if not narrow:
                continue
            low, high = width_gain(view, launch, narrow)
            worst = max(narrow, key=lambda n: n.sample.total)
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
                claim=f"runs of {worst.sample.contiguous} elements are contiguous, but dividing by {', '.join(worst.divisors)} hides it: "
                f"{worst.width} bytes are moved at a time where {worst.possible} would do",
                facts=[
                    metric("contiguous", float(worst.sample.contiguous), "elements", launch, worst.access.line),
                    seen(
                        f"`{worst.access.expanded or worst.access.pointer}` divides a tile by {', '.join(worst.divisors)}",
                        launch.kernel_file,
                        worst.access.line,
                    ),
                ],
                prediction=f"with {', '.join(worst.divisors)} known the access moves {worst.possible} bytes per thread",
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = launch_of(view, hypothesis)
        if launch is None or launch.index not in view.compiled:
            return hypothesis
        narrow = [n for n in _hidden(view, launch) if n.compiled]
        if not narrow:
            return refuted(hypothesis, "the machine code already moves as many bytes per thread as the addresses allow")
        return raised(
            hypothesis,
            "located",
            located(
                "ptx", f"{narrow[0].access.kind} of {narrow[0].width} bytes per thread", launch, narrow[0].access.line, narrow[0].width * 8
            ),
        )

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = launch_of(view, hypothesis)
        if launch is None:
            return
        for n in _hidden(view, launch)[:1]:
            names = tuple(dict.fromkeys((*n.divisors, *n.address, *n.mask)))
            yield Probe(
                claim="with the divisor known the access gets wider",
                grants=tuple(argument_probe(launch, name) for name in names),
                line=n.access.line,
                expect="increase",
                stage="ptx",
                signature=f"global.{n.access.kind}.bits",
                launch=launch.index,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = launch_of(view, hypothesis)
        narrow = _hidden(view, launch) if launch else []
        if launch is None or not narrow:
            return
        names = tuple(dict.fromkeys(name for n in narrow for name in (*n.divisors, *n.address, *n.mask)))
        integers = tuple(n for n in names if (a := launch.argument(n)) is not None and a.tensor is None)
        for made in (constexpr_rewrite(view, launch, integers), unit_rewrite(view, launch, integers)):
            if made is not None:
                yield msgspec.structs.replace(
                    made,
                    rule=self.code,
                    signature=f"global.{narrow[0].access.kind}.bits",
                    expect="increase",
                    finding=f"{self.code}:{hypothesis.key}",
                    prediction=hypothesis.prediction,
                )


def _hidden(view: View, launch: Launch) -> list[Narrow]:
    return [n for n in narrow_accesses(view, launch) if n.divisors]


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"p5000": dict(n=5000, times=16000)}
SMALL = {"tiny": dict(n=64, times=2), "odd": dict(n=77, times=3)}


@triton.jit
def tile_kernel(x_ptr, y_ptr, n, period, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i % period, mask=i < n)  # repeats the pattern
    tl.store(y_ptr + i, x, mask=i < n)


def launch(x, times):
    y = torch.empty(x.numel() * times, device=x.device, dtype=x.dtype)
    tile_kernel[(triton.cdiv(y.numel(), 1024),)](x, y, y.numel(), x.numel(), BLOCK=1024)
    return y


def reference(x, times):
    return x.repeat(times)


def make_inputs(*, device, seed, n, times):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device).half(), times=times)
"""

AFTER = """\
import torch
import triton
import triton.language as tl

CASES = {"p5000": dict(n=5000, times=16000)}
SMALL = {"tiny": dict(n=64, times=2), "odd": dict(n=77, times=3)}


@triton.jit
def tile_kernel(x_ptr, y_ptr, n, period: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i % period, mask=i < n)  # repeats the pattern
    tl.store(y_ptr + i, x, mask=i < n)


def launch(x, times):
    y = torch.empty(x.numel() * times, device=x.device, dtype=x.dtype)
    tile_kernel[(triton.cdiv(y.numel(), 1024),)](x, y, y.numel(), x.numel(), BLOCK=1024)
    return y


def reference(x, times):
    return x.repeat(times)


def make_inputs(*, device, seed, n, times):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device).half(), times=times)
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"p4096": dict(n=4096, times=16000)}
SMALL = {"tiny": dict(n=64, times=2), "odd": dict(n=77, times=3)}


@triton.jit
def tile_kernel(x_ptr, y_ptr, n, period, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i % period, mask=i < n)  # repeats the pattern
    tl.store(y_ptr + i, x, mask=i < n)


def launch(x, times):
    y = torch.empty(x.numel() * times, device=x.device, dtype=x.dtype)
    tile_kernel[(triton.cdiv(y.numel(), 1024),)](x, y, y.numel(), x.numel(), BLOCK=1024)
    return y


def reference(x, times):
    return x.repeat(times)


def make_inputs(*, device, seed, n, times):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device).half(), times=times)
"""

ContiguityUnknown.examples = (
    Example(title="a pattern of 5000 halves", before=BEFORE, line=12, grade="confirmed", after=AFTER),
    Example(title="a pattern of 4096 halves", before=CLEAN),
)

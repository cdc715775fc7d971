"""HST103 extra-copy."""

from collections.abc import Iterable

from leadline.model import HostOp, Hypothesis
from leadline.rules.base import Example, Rule, View, seen
from leadline.rules.host.call_time import call_us, host_op_us, is_copy, plain_name, read, specs, written

SMALL_BYTES = 1 << 19  # what is smaller costs its launch only


class ExtraCopy(Rule):
    """The wrapper copies, casts, pads or re-lays a tensor that the kernel could read through its strides and dtype.

    What it finds
        Torch operations of the wrapper that write a new copy of a tensor (`.contiguous()`, `.to(dtype)`, `.float()`, `clone`, `pad`, `cat`
        of inputs) which a launch then only reads, and copies of a launch's output before it is returned.
    Why it is slow
        The copy reads and writes the whole tensor and costs a launch of its own; a cast to a wider type also doubles what the kernel reads.
    How it is proved
        The wrapper is run without a device; each torch operation is recorded with the bytes it moves and the launches that read its result.
    Rewrite and its safety
        None is generated where the kernel's addresses must change. A conversion that the traced case does not need (same dtype, already
        contiguous) costs nothing and is not reported.
    References
        PyTorch documentation, tensor views.
    """

    code, slug, cause, family = "HST103", "extra-copy", "extra_copy", "host"
    targets = ("cuda", "hip", "ascend")

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        if view.trace is None or not view.launches:
            return
        total = call_us(view)
        removable = [op for op in view.trace.host_ops if is_copy(op) and self._needless(view, op)]
        by_line: dict[int, list[HostOp]] = {}
        for op in removable:
            by_line.setdefault(op.line, []).append(op)
        for line, ops in sorted(by_line.items()):
            cost = sum(host_op_us(view, op) for op in ops)
            if total <= 0 or cost / total < 0.02 or sum(op.bytes for op in ops) < SMALL_BYTES:
                continue
            moved = sum(op.bytes for op in ops)
            high = total / max(total - cost, 0.05 * total)
            kinds = ", ".join(sorted({plain_name(op).strip("_") for op in ops}))
            after = all(self._of_result(view, op) for op in ops)
            yield self.hypothesis(
                view,
                None,
                line=line,
                key=f"copy:{line}",
                low=1 + (high - 1) * 0.4,
                high=high,
                grade="observed",
                sufficient_level=2,
                claim=f"the wrapper moves {moved / 1e6:.1f} MB ({kinds}) to copy a launch's result into the output: the launch "
                "could store it there itself, by the output's strides and dtype"
                if after
                else f"the wrapper copies {moved / 1e6:.1f} MB ({kinds}) for a launch that could read the original as it is",
                facts=[seen(f"{op.name} moves {op.bytes / 1e6:.1f} MB beside the launches", view.source.path, op.line) for op in ops[:4]],
                prediction=f"about {cost:.0f} us of {total:.0f} us per call go away",
            )

    def _needless(self, view: View, op: HostOp) -> bool:
        """Whether a launch reads the result without anyone writing it, or the copied thing is a launch's result."""
        known = specs(view)
        targets = set(op.writes) - set(op.reads)
        later = [x for x in view.launches if x.index >= op.order]
        for storage in targets & set(known):
            if any(storage in read(view, x) for x in later) and not any(storage in written(view, x) for x in view.launches):
                return True
        return self._of_result(view, op)

    def _of_result(self, view: View, op: HostOp) -> bool:
        """Whether the operation copies what an earlier launch stored into what the wrapper returns."""
        targets = set(op.writes) - set(op.reads)
        outputs = {t.storage for t in (view.trace.outputs if view.trace else ())}
        earlier = [x for x in view.launches if x.index < op.order]
        return bool(targets & outputs) and any(s in written(view, x) for x in earlier for s in op.reads)


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"n4m": dict(n=1 << 22)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * factor, mask=i < n)


def launch(x):
    wide = x.to(torch.float32)
    y = torch.empty_like(wide)
    scale_kernel[(triton.cdiv(wide.numel(), 1024),)](wide, y, wide.numel(), 2.0, BLOCK=1024)
    return y


def reference(x):
    return x.float() * 2.0


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device).half())
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"n4m": dict(n=1 << 22)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float32)
    tl.store(y_ptr + i, x * factor, mask=i < n)


def launch(x):
    y = torch.empty(x.shape, device=x.device, dtype=torch.float32)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 2.0, BLOCK=1024)
    return y


def reference(x):
    return x.float() * 2.0


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device).half())
"""

OUTPUT = CLEAN.replace("    return y\n", "    out = torch.empty_like(y)\n    out[:] = y\n    return out\n")

ExtraCopy.examples = (
    Example(title="a cast before the kernel", before=BEFORE, line=17, grade="observed"),
    Example(title="a result copied into the output", before=OUTPUT, line=20, grade="observed"),
    Example(title="the kernel reads the narrow type", before=CLEAN),
)

"""HST106 partial-buffer-growth."""

from collections.abc import Iterable

from leadline.model import Hypothesis, Launch, TensorSpec
from leadline.rules.base import Example, Rule, View, metric, seen
from leadline.rules.host.call_time import TORCH_OP_US, bandwidth, call_us, read, tensor_bytes, written

ENOUGH_PER_SM = 4  # partial results per multiprocessor that any split needs at most


class PartialBufferGrowth(Rule):
    """A buffer of partial results has one row per program, and the number of programs grows with the input.

    What it finds
        A buffer that a launch fills with one slice per program of a grid axis and that a torch reduction or a later launch sums, where
        there are many more slices than the device has use for.
    Why it is slow
        The buffer is written and read again; its reduction grows with the input, often on few programs.
    How it is proved
        Grid, buffer shape and the operations on it come from running the wrapper without a device.
    Rewrite and its safety
        None is generated: a fixed number of persistent programs with a loop must be written.
    References
        Liger-Kernel pull request 945 (fixed number of partial rows).
    """

    code, slug, cause, family = "HST106", "partial-buffer-growth", "partial_buffer_growth", "host"
    targets = ("cuda", "hip", "ascend")

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        if view.trace is None:
            return
        inputs = {t.storage for t in view.trace.inputs.values()}
        outputs = {t.storage for t in view.trace.outputs}
        enough = ENOUGH_PER_SM * view.sms
        for launch in view.launches:
            reads = read(view, launch)
            for storage, name in written(view, launch).items():
                if storage in inputs or storage in outputs or storage in reads:
                    continue
                argument = launch.argument(name)
                spec = argument.tensor if argument else None
                slices = _slices(launch, spec)
                if spec is None or slices <= enough or not self._reduced(view, launch, storage, spec):
                    continue
                bytes_ = tensor_bytes(spec)
                saved = 2 * bytes_ * (1 - enough / slices) / bandwidth(view)
                total = call_us(view)
                high = total / max(total - saved - TORCH_OP_US * 0.3, 0.3 * total)
                if high < 1.03:
                    continue
                yield self.hypothesis(
                    view,
                    None,
                    line=launch.call_line,
                    file=launch.call_file or view.source.path,
                    kernel=launch.kernel,
                    key=f"{launch.kernel}:{name}",
                    low=1 + (high - 1) * 0.3,
                    high=high,
                    grade="observed",
                    sufficient_level=2,
                    claim=f"`{name}` holds one partial result for each of {slices} programs; {enough} would fill the device, the rest is "
                    f"written ({bytes_ / 1e6:.1f} MB) only to be reduced again",
                    facts=[
                        seen(f"{launch.kernel} stores one slice of {name} per program", launch.kernel_file, launch.kernel_line),
                        metric("partial results", float(slices), "slices", launch, collector="dry"),
                    ],
                    prediction=f"at most {enough} slices: the reduction no longer grows with the input",
                )

    def _reduced(self, view: View, launch: Launch, storage: int, spec: TensorSpec) -> bool:
        """Whether the buffer is afterwards made much smaller, by torch or by a launch."""
        for op in view.trace.host_ops if view.trace else ():
            if storage in op.reads and not op.view and op.order > launch.index and op.bytes < 1.5 * tensor_bytes(spec):
                return True
        for later in view.launches:
            if later.index > launch.index and storage in read(view, later):
                known = {a.tensor.storage: a.tensor for a in later.arguments if a.tensor is not None}
                made = sum(tensor_bytes(known[s]) for s in written(view, later))
                if made * 4 <= tensor_bytes(spec):
                    return True
        return False


def _slices(launch: Launch, spec: TensorSpec | None) -> int:
    """Slices of the buffer, when some axis of the grid (or the whole grid) has as many programs as it has rows; else 0."""
    if spec is None or not spec.shape:
        return 0
    sizes = {g for g in launch.grid if g > 1} | {launch.programs}
    return max((n for n in (*spec.shape, spec.numel) if n in sizes), default=0)


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"r32768": dict(rows=32768, cols=1024)}
SMALL = {"tiny": dict(rows=4, cols=16), "odd": dict(rows=7, cols=13)}
TOLERANCE = dict(rtol=1e-3, atol=1e-1)


@triton.jit
def partial_kernel(x_ptr, part_ptr, cols, BLOCK: tl.constexpr):
    c = tl.program_id(0) * 0 + tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0)
    tl.store(part_ptr + row * cols + c, x * x, mask=c < cols)


def launch(x):
    rows, cols = x.shape
    part = torch.empty(rows, cols, device=x.device)
    partial_kernel[(rows,)](x, part, cols, BLOCK=triton.next_power_of_2(cols))
    return part.sum(0)


def reference(x):
    return (x * x).sum(0)


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device))
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"r32768": dict(rows=32768, cols=1024)}
SMALL = {"tiny": dict(rows=4, cols=16), "odd": dict(rows=7, cols=13)}


@triton.jit
def partial_kernel(x_ptr, part_ptr, cols, BLOCK: tl.constexpr):
    c = tl.program_id(0) * 0 + tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0)
    tl.store(part_ptr + row * cols + c, x * x, mask=c < cols)


def launch(x):
    rows, cols = x.shape
    part = torch.empty(rows, cols, device=x.device)
    partial_kernel[(rows,)](x, part, cols, BLOCK=triton.next_power_of_2(cols))
    return part


def reference(x):
    return x * x


def make_inputs(*, device, seed, rows, cols):
    torch.manual_seed(seed)
    return dict(x=torch.randn(rows, cols, device=device))
"""

PartialBufferGrowth.examples = (
    Example(title="one partial row per program", before=BEFORE, line=21, grade="observed"),
    Example(title="the buffer is the result", before=CLEAN),
)

"""HST105 launch-overhead."""

from collections.abc import Iterable

from leadline.model import Hypothesis
from leadline.rules.base import Example, Rule, View, metric, seen
from leadline.rules.host.call_time import LAUNCH_US, TORCH_OP_US, call_us, launches_us


class LaunchOverhead(Rule):
    """The device work of a call is shorter than what the host needs to launch it.

    What it finds
        Many launches per call (a Python loop over tensors, groups or steps), or launches whose predicted device time is below the
        host's own cost of a launch.
    Why it is slow
        A launch through the JIT's cache costs the host 2.5 to 5 us, a torch operation about 3 us; the device waits for them.
    How it is proved
        Launches and operations are counted by running the wrapper without a device; their device times are predicted or measured.
    Rewrite and its safety
        None is generated: merging launches changes the grid (one grid over all items) or the caller (CUDA graphs).
    References
        CUDA C++ best practices guide, kernel launch overhead; CUDA graphs.
    """

    code, slug, cause, family = "HST105", "launch-overhead", "launch_overhead", "host"
    targets = ("cuda", "hip", "ascend")

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        if view.trace is None or not view.launches:
            return
        count = sum(x.repeats for x in view.launches)
        torch_ops = sum(1 for op in view.trace.host_ops if not op.view and op.bytes > 0)
        if count + torch_ops < 3:
            return
        own_launch = sum((view.costs[x.index].launch_us if x.index in view.costs else 0.0) * x.repeats for x in view.launches)
        device = max(call_us(view) - own_launch - TORCH_OP_US * torch_ops, 1.0)
        kinds = len({x.kernel for x in view.launches})
        gains: list[float] = []
        for us in LAUNCH_US:
            before = max(device, us * count + TORCH_OP_US * torch_ops)
            after = max(device, us * kinds)
            gains.append(before / after)
        # Even when the device is the bottleneck, each launch has a start and a tail of about a microsecond.
        tails = 1 + (count - kinds) * 1.0 / max(launches_us(view), 1.0)
        low, high = min(gains), max(*gains, min(tails, 3.0))
        if high < 1.05:
            return
        busiest = max(view.launches, key=lambda x: x.repeats)
        loop = view.source.wrapper is not None and any(s.loop for s in view.source.wrapper.launches)
        yield self.hypothesis(
            view,
            None,
            line=busiest.call_line,
            file=busiest.call_file or view.source.path,
            key="launches",
            kernel=busiest.kernel,
            low=low,
            high=high,
            grade="observed",
            sufficient_level=2,
            claim=f"a call makes {count} launches and {torch_ops} torch operations for about {device:.0f} us of device work"
            + (", one per iteration of a Python loop" if loop else ""),
            facts=[
                seen(f"{count} launches per call", busiest.call_file or view.source.path, busiest.call_line),
                metric("device time without launches", device, "us", busiest, collector="floor"),
            ],
            prediction=f"one launch per kernel ({kinds}) leaves the device time",
        )


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"rows": dict(n=1 << 16)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=128)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * factor, mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    for part, out in zip(x.chunk(16), y.chunk(16)):
        scale_kernel[(triton.cdiv(part.numel(), 1024),)](part, out, part.numel(), 2.0, BLOCK=1024)
    return y


def reference(x):
    return x * 2.0


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device))
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
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * factor, mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 2.0, BLOCK=1024)
    return y


def reference(x):
    return x * 2.0


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device))
"""

LaunchOverhead.examples = (
    Example(title="one launch per row", before=BEFORE, line=19, grade="observed"),
    Example(title="one launch", before=CLEAN),
)

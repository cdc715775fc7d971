"""What atomics cost: which programs meet on the same addresses, and how long the memory system needs for them."""

from leadline.model import Access, Launch
from leadline.rules.base import View

# Additions per second that the L2 of an H200 sustained on coalesced float32 addresses met by many programs: a weight-gradient kernel with
# 2.7e8 of them took 0.86 ms longer than the same kernel with private sums. Other parts are scaled by their L2 rate, against the rate that
# the table of ceilings gives the H200.
ADDITIONS_PER_S = 3.1e11
H200_L2_BYTES_PER_S = 7.5e12
# The other end: tiles added from a dot's loop on the same device went at least this much faster than the rate above (6.7e7 additions in
# a kernel of 0.14 ms, half of which is other work).
FASTEST = 2.2
REACHED = 0.75  # share of the ideal rates that the rest of such a kernel reaches


def contended(view: View, launch: Launch, access: Access) -> list[int]:
    """Program axes of more than one program on which all programs update the same addresses, widest first."""
    sample = view.access(launch.index, access.line)
    axes: list[int] = []
    for axis, extent in enumerate(launch.grid):
        if extent <= 1:
            continue
        if access.indirect or (sample is not None and sample.indirect):
            continue
        shared = sample.shared.get(axis) if sample is not None else None
        same = shared >= 0.99 if shared is not None else axis not in access.axes
        if same and axis not in access.axes:
            axes.append(axis)
    return sorted(axes, key=lambda a: -launch.grid[a])


def summable(launch: Launch, access: Access) -> bool:
    """Whether sums of the updates may be kept in float32: the output is of a float type no wider than that."""
    argument = launch.argument(access.base or "")
    return argument is not None and argument.tensor is not None and argument.tensor.dtype in ("fp32", "fp16", "bf16")


def atomic_us(view: View, launch: Launch, access: Access) -> float:
    """Predicted time of all updates that `access` makes, in microseconds."""
    sample = view.access(launch.index, access.line)
    if sample is None:
        return 0.0
    updates = sample.total / max(sample.itemsize, 1)
    scale = view.ceilings.l2_bytes_per_s / H200_L2_BYTES_PER_S if view.ceilings else 1.0
    return updates / (ADDITIONS_PER_S * max(scale, 0.1)) * 1e6


def inflated(view: View, launch: Launch, spent_us: float) -> tuple[float, float]:
    """(low, high) speedup of the launch without the updates.

    Low: they go at the fastest rate seen and overlap the rest; high: at the slowest, behind the rest.
    """
    cost = view.costs.get(launch.index)
    rest = max(cost.dram_us, cost.compute_us, cost.launch_us, 1.0) / REACHED if cost else max(spent_us, 1.0)
    return max(spent_us / FASTEST, rest) / rest, (spent_us + rest) / rest

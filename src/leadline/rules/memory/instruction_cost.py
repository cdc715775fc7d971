"""What instructions cost beside memory traffic: the issue slots of a launch, and the speedup of removing some of them.

The figures are for a Hopper multiprocessor and serve ranking only. They were fitted to public before/after pairs: a scalar masked
16-bit access costs about 5 cycles of a multiprocessor with the arithmetic around it, a 32-bit division by a runtime divisor 10
instructions (its reciprocal is hoisted), by a constant 5.
"""

import ast

from leadline.model import AccessSample, Launch, LaunchCost
from leadline.rules.base import View

CLOCK_HZ = 1.7e9
ISSUE_PER_CYCLE = 3.6  # of the four schedulers, in straight-line integer code
ACCESS_CYCLES = 4.5  # per warp-wide memory instruction with its address and mask arithmetic
RUNTIME_DIVISION = 11
CONSTANT_DIVISION = 5.5
WIDE_DIVISION = 26  # of 64-bit integers that fit 32 bits, by a runtime value: measured on an H200; others take a subroutine
WIDE_CONSTANT_DIVISION = 22
WIDEST = 16  # bytes of one access of a thread


def issue_us(warp_instructions: float, sms: int) -> float:
    """Time in us to issue that many warp-wide instructions, spread evenly over `sms` multiprocessors."""
    return warp_instructions / (max(sms, 1) * ISSUE_PER_CYCLE * CLOCK_HZ) * 1e6


def access_us(access: AccessSample, width: int, programs: int, sms: int) -> float:
    """Time in us to issue one access of the whole launch when every thread moves `width` bytes at a time."""
    per_thread = max(width // max(access.itemsize, 1), 1)
    warp_accesses = programs * access.executions * access.lanes / 32 / per_thread
    return warp_accesses * ACCESS_CYCLES / (max(min(sms, programs), 1) * CLOCK_HZ) * 1e6


def possible_width(access: AccessSample) -> int:
    """Bytes of the widest access that the sampled addresses allow one thread: contiguity and alignment, at most 16."""
    width = access.itemsize
    while width < WIDEST and 2 * width <= min(access.alignment, access.contiguous * access.itemsize):
        width *= 2
    return width


def combined(cost: LaunchCost, issue: float = 0.0, *, dram: float = 1.0, l2: float = 1.0, latency: float = 1.0) -> float:
    """Time in us of a launch from its largest predicted part, scaled by these factors, and `issue` us of instruction issue.

    The two overlap well until they are about equal: the fourth root of the sum of fourth powers was fitted to measured pairs.
    """
    memory = max(cost.dram_us * dram, cost.l2_us * l2, cost.latency_us * latency, cost.compute_us)
    return max(cost.launch_us, 1.0) + (memory**4 + issue**4) ** 0.25


def gain(view: View, launch: Launch, before_us: float, after_us: float) -> tuple[float, float]:
    """Speedup (low, high) of a launch whose instruction issue shrinks from `before_us` to `after_us`; (1, 1) when nothing is known of
    the launch's cost. Low is half of the gain: the issue model is good to a factor of two."""
    cost = view.costs.get(launch.index)
    if cost is None or before_us <= after_us:
        return 1.0, 1.0
    high = combined(cost, before_us) / combined(cost, after_us)
    return 1 + (high - 1) * 0.5, high


def scaled(view: View, launch: Launch, *, dram: float = 1.0, l2: float = 1.0, latency: float = 1.0) -> tuple[float, float]:
    """Speedup (low, high) of a launch whose predicted times shrink by these factors (0 to 1)."""
    cost = view.costs.get(launch.index)
    if cost is None:
        return 1.0, 1.0
    high = combined(cost) / combined(cost, dram=dram, l2=l2, latency=latency)
    return 1 + (high - 1) * 0.5, high


def elements(view: View, launch: Launch) -> float:
    """Tile elements that the launch handles: the most that one of its accesses touches."""
    sample = view.samples.get(launch.index)
    if sample is None:
        return 0.0
    return max((launch.programs * a.executions * a.lanes for a in sample.accesses), default=0.0)


def requested(view: View, launch: Launch) -> float:
    """Bytes that all accesses of the launch request."""
    sample = view.samples.get(launch.index)
    return sum(a.total for a in sample.accesses) if sample else 0.0


def width_at(view: View, launch: Launch, line: int, kind: str) -> int | None:
    """Bytes of the narrowest compiled access at a line, None before it was compiled or when the line holds none."""
    bits = view.counter(launch.index, f"global.{'store' if kind == 'store' else 'load'}.bits", line)
    return bits // 8 if bits else None


def straight_issue_us(view: View, launch: Launch) -> float | None:
    """Instruction issue of the launch in us from its machine code; None before it was compiled or when it has loops."""
    facts, count = view.kernel(launch), view.counter(launch.index, "instructions")
    if not count or facts is None or facts.loops:
        return None
    return issue_us(float(count * launch.programs * launch.option("num_warps", 4)), view.sms)


def instructions_at(view: View, launch: Launch, lines: set[int]) -> int:
    """Machine instructions attributed to these lines (static count)."""
    compiled = view.compiled.get(launch.index)
    if compiled is None:
        return 0
    return sum(n for line in lines for name, n in compiled.line_counters.get(line, {}).items() if name.startswith("sass."))


def names_in(text: str | None) -> set[str]:
    """All plain names in a source expression; empty for text that does not parse."""
    tree = expression(text)
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} if tree else set()


def expression(text: str | None) -> ast.expr | None:
    """The parsed expression, or None."""
    if not text:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None

"""How much work a launch gives to each program: the numbers that the grid and tile rules share, and the bounds of index expressions."""

import ast
import math
from collections.abc import Callable, Iterable, Mapping

from leadline.model import Hypothesis, KernelFacts, Launch, LaunchCost, Loop, Metric
from leadline.rules.base import View
from leadline.rules.grid.body import callee

Bounds = tuple[float, float]

# One multiprocessor alone draws at most about this many times its fair share of bandwidth.
ALONE = 2.2
# Start of a program, its first load and its last store, in the cost model.
START_US = 0.9
# With no more warps on a multiprocessor, loads, arithmetic and waiting hardly overlap.
FEW_WARPS = 8
# Microseconds that a program without a loop lives: launch, one chain of two dependent loads, stores.
LIFETIME_US = 1.2


def numbers(launch: Launch) -> dict[str, int | float]:
    """Numeric arguments of the launch by name: constexprs, folded ones and scalars."""
    found: dict[str, int | float] = {}
    for argument in launch.arguments:
        if isinstance(argument.value, bool):
            found[argument.name] = int(argument.value)
        elif isinstance(argument.value, int | float):
            found[argument.name] = argument.value
    return found


def parse(text: str) -> ast.expr | None:
    """The expression of `text`, or None when it is not one."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _product(a: Bounds, b: Bounds) -> Bounds:
    corners = [x * y if x and y else 0.0 for x in a for y in b]
    return min(corners), max(corners)


def _binary(op: ast.operator, a: Bounds, b: Bounds) -> Bounds | None:
    if isinstance(op, ast.Add):
        return a[0] + b[0], a[1] + b[1]
    if isinstance(op, ast.Sub):
        return a[0] - b[1], a[1] - b[0]
    if isinstance(op, ast.Mult):
        return _product(a, b)
    if b[0] != b[1] or b[0] == 0:
        return None
    d = b[0]
    if isinstance(op, ast.FloorDiv):
        low, high = sorted((a[0] // d, a[1] // d))
        return low, high
    if isinstance(op, ast.Div):
        low, high = sorted((a[0] / d, a[1] / d))
        return low, high
    if isinstance(op, ast.Mod) and d > 0:
        return (a[0] % d, a[1] % d) if a[0] // d == a[1] // d else (0, d - 1)
    if isinstance(op, ast.LShift):
        return _product(a, (2.0**d, 2.0**d))
    if isinstance(op, ast.RShift):
        return a[0] // 2**d, a[1] // 2**d
    return None


def bounds(node: ast.expr | None, known: Mapping[str, Bounds], facts: KernelFacts | None = None, depth: int = 0) -> Bounds | None:
    """Smallest and largest value of an index expression, or None when a part of it is unknown.

    `known` maps names (and "program_id(0)" ..., "num_programs(0)" ...) to their bounds; other names are looked up among the symbols of
    `facts`, unless they are carried through a loop or loaded. `tl.arange` counts as all of its lanes at once.
    """
    if node is None or depth > 24:
        return None

    def again(part: ast.expr) -> Bounds | None:
        return bounds(part, known, facts, depth + 1)

    if isinstance(node, ast.Constant):
        return (float(node.value), float(node.value)) if isinstance(node.value, int | float) else None
    if isinstance(node, ast.Name):
        if node.id in known:
            return known[node.id]
        symbol = facts.symbol(node.id) if facts else None
        if symbol is None or symbol.loaded or (facts and any(node.id in loop.carried for loop in facts.loops)):
            return None
        return again(right) if (right := definition(symbol.text)) is not None else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = again(node.operand)
        return (-inner[1], -inner[0]) if inner else None
    if isinstance(node, ast.Subscript):
        return again(node.value)
    if isinstance(node, ast.BinOp):
        a, b = again(node.left), again(node.right)
        return _binary(node.op, a, b) if a and b else None
    if isinstance(node, ast.Call):
        return _call(node, known, again)
    return None


def _call(node: ast.Call, known: Mapping[str, Bounds], again: Callable[[ast.expr], Bounds | None]) -> Bounds | None:
    name = callee(node)
    if name == "to" and isinstance(node.func, ast.Attribute):
        return again(node.func.value)
    if name in ("program_id", "num_programs"):
        axis = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "axis"), None)
        return known.get(f"{name}({axis.value})") if isinstance(axis, ast.Constant) else None
    parts = [again(a) for a in node.args]
    if not parts or any(p is None for p in parts):
        return None
    values = [p for p in parts if p is not None]
    if name == "arange" and len(values) == 2:
        return values[0][0], values[1][0] - 1
    if name == "cdiv" and len(values) == 2 and values[1][0] == values[1][1] and values[1][0] > 0:
        return -(-values[0][0] // values[1][0]), -(-values[0][1] // values[1][0])
    if name in ("min", "minimum"):
        return min(v[0] for v in values), min(v[1] for v in values)
    if name in ("max", "maximum"):
        return max(v[0] for v in values), max(v[1] for v in values)
    if name == "next_power_of_2":
        return tuple(float(1 << max(int(x) - 1, 0).bit_length()) for x in values[0])  # type: ignore[return-value]
    return values[0] if name in ("multiple_of", "max_contiguous", "int", "int32", "int64") else None


def definition(text: str) -> ast.expr | None:
    """The right-hand side of `name = expression`, or `text` itself when it is an expression."""
    node = parse(text)
    if node is not None:
        return node
    try:
        first = ast.parse(text.strip()).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None
    return first.value if isinstance(first, ast.Assign | ast.AnnAssign) else None


def known_bounds(launch: Launch, program: tuple[int, int, int] | None = None) -> dict[str, Bounds]:
    """Bounds of the launch's numbers and of its program ids: of one program, or of the whole grid."""
    found: dict[str, Bounds] = {name: (float(v), float(v)) for name, v in numbers(launch).items()}
    for axis, extent in enumerate(launch.grid):
        at = program[axis] if program else None
        found[f"program_id({axis})"] = (0.0, float(extent - 1)) if at is None else (float(at), float(at))
        found[f"num_programs({axis})"] = (float(extent), float(extent))
    return found


def number(text: str, launch: Launch, facts: KernelFacts | None = None) -> float | None:
    """The value of an expression over the launch's arguments, or None when it is not a single known number."""
    found = bounds(parse(text), known_bounds(launch), facts)
    return found[0] if found and found[0] == found[1] else None


def threads(launch: Launch) -> int:
    """Threads of one program."""
    return 32 * launch.option("num_warps", 4)


def resident(launch: Launch, view: View) -> int:
    """Programs that one multiprocessor can hold at once: by threads, and by registers and shared memory once compiled."""
    ceilings = view.ceilings
    held = min(32, max(1, (ceilings.threads_per_sm if ceilings else 2048) // threads(launch)))
    compiled = view.compiled.get(launch.index)
    if compiled and not compiled.error and compiled.resources.registers:
        per_warp = -(-compiled.resources.registers * 32 // 256) * 256
        held = min(held, (ceilings.regs_per_sm if ceilings else 65536) // max(1, per_warp * threads(launch) // 32))
        if compiled.resources.smem:
            held = min(held, (ceilings.smem_per_sm if ceilings else 228 * 1024) // (compiled.resources.smem + 1024))
    return max(1, held)


def trips(view: View, launch: Launch, loop: Loop, facts: KernelFacts | None = None) -> float:
    """Iterations of `loop` in one program: sampled, else computed from its bounds; 1 when unknown."""
    sampled = view.loop_trips(launch.index, loop.line)
    if sampled is not None:
        return sampled.trips_mean
    known = known_bounds(launch, (launch.grid[0] // 2, launch.grid[1] // 2, launch.grid[2] // 2))
    ends = [bounds(parse(t), known, facts) for t in (loop.start, loop.stop, loop.step)]
    if any(e is None for e in ends):
        return 1.0
    start, stop, step = (e[0] for e in ends if e is not None)
    return max(0.0, math.ceil((stop - start) / step)) if step else 1.0


def depth_trips(view: View, launch: Launch, loop: Loop, facts: KernelFacts) -> float:
    """Iterations of `loop` times those of the loops around it."""
    total, at = 1.0, loop
    while at is not None:
        total *= max(1.0, trips(view, launch, at, facts))
        at = facts.loop(at.parent) if at.parent >= 0 else None
    return total


def widest(view: View, launch: Launch, facts: KernelFacts | None) -> tuple[int, int]:
    """Elements and line of the largest tile that the program reads or writes: sampled, else from the `tl.arange` calls."""
    sample = view.samples.get(launch.index)
    best = max(((a.lanes, a.line) for a in sample.accesses), default=(0, 0)) if sample else (0, 0)
    if best[0] or facts is None:
        return best
    sizes = [(ranged(launch, o.text, facts), o.line) for o in facts.of_kind("arange")]
    return max(sizes, default=(1, facts.line))


def ranged(launch: Launch, text: str, facts: KernelFacts | None = None) -> int:
    """Elements of a `tl.arange(a, b)` text; 1 when they cannot be computed."""
    for node in ast.walk(parse(text) or ast.Constant(0)):
        if isinstance(node, ast.Call) and callee(node) == "arange":
            found = bounds(node, known_bounds(launch), facts)
            return int(found[1] - found[0] + 1) if found else 1
    return 1


def program_bytes(view: View, launch: Launch) -> float:
    """Bytes that one program asks for, masked lanes left out; 0 when it was not sampled."""
    sample = view.samples.get(launch.index)
    return sum(a.per_program for a in sample.accesses) if sample else 0.0


def modelled_us(
    view: View, launch: Launch, cost: LaunchCost, *, split: float = 1.0, chain: float = 1.0, overhead_us: float = 0.0, overlap: bool = False
) -> float:
    """Predicted time of the launch with `split` times as many programs whose chains of iterations are `chain` times shorter, in us.

    The parts of `cost` are scaled as they were made: bandwidth, arithmetic and rounds by the multiprocessors that the grid fills.
    `overlap`: the loads are issued ahead (a pipelined product), so the parts overlap however few warps run.
    """
    rounds, held, warps = launch.programs / view.sms, resident(launch, view), launch.option("num_warps", 4)
    busy, busy_after = min(1.0, rounds), min(1.0, rounds * split)
    drawn = min(1.0, busy * ALONE) / min(1.0, busy_after * ALONE)
    now, after = max(1.0, rounds / held), max(1.0, rounds * split / held)
    steps = max(0.0, cost.latency_us / now - START_US)
    latency = after * (min(START_US, cost.latency_us / now) + steps / chain)
    parts = [cost.dram_us * drawn, cost.l2_us * drawn, cost.compute_us * busy / busy_after, latency, cost.atomics_us]
    alone = not overlap and min(held, rounds * split) * warps <= FEW_WARPS
    return cost.launch_us + overhead_us + (sum(parts) if alone else math.hypot(*parts))


def gain(
    view: View, launch: Launch, *, split: float = 1.0, chain: float = 1.0, overhead_us: float = 0.0, overlap: bool = False
) -> float | None:
    """Predicted speedup of the launch if its work were split (see `modelled_us`); None when no cost was computed."""
    cost = view.costs.get(launch.index)
    if cost is None or cost.total_us <= 0:
        return None
    after = modelled_us(view, launch, cost, split=split, chain=chain, overhead_us=overhead_us, overlap=overlap)
    measured = view.measured_us(launch.index)
    now = measured if measured is not None else modelled_us(view, launch, cost, overlap=overlap)
    return now / max(after, 1e-9)


def figure(hypothesis: Hypothesis, name: str, default: float = 0.0) -> float:
    """A number that the rule noted as evidence when it raised the hypothesis."""
    return next((f.value for f in hypothesis.facts if isinstance(f, Metric) and f.name == name), default)


def launched(view: View) -> Iterable[tuple[Launch, KernelFacts]]:
    """Launches whose kernel's source is known, one per kernel, source line and specialisation (the longest of equal ones)."""
    best: dict[tuple[str, int], Launch] = {}
    for launch in view.launches:
        key = (launch.kernel, launch.call_line)
        if key not in best or view.time_us(launch.index) > view.time_us(best[key].index):
            best[key] = launch
    for launch in best.values():
        facts = view.kernel(launch)
        if facts is not None:
            yield launch, facts

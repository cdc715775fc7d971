"""A block much larger than what it covers: how much of it is padding, what the padding costs, and the block that would do."""

import ast

from leadline.model import Access, KernelFacts, Launch, Record
from leadline.rules.base import View
from leadline.rules.editing import EditError, SourceFile
from leadline.rules.grid.work import numbers, parse
from leadline.rules.memory.argument_facts import pure
from leadline.rules.memory.instruction_cost import issue_us, straight_issue_us
from leadline.rules.tile.pressure import site_of

# Time of a wide block over its bare issue slots: few warps fit beside its registers. Fitted to a softmax of 1000 columns on an H200 in
# blocks of 1024 to 16384.
STALLS = 1.3


class Padding(Record, frozen=True):
    """`arange(0, block)` of which every mask lets only the first `extent` lanes through; `bound` is the mask's text for the extent."""

    block: int
    extent: int
    bound: str

    @property
    def enough(self) -> int:
        """The smallest power of two that holds the extent."""
        return 1 << max(self.extent - 1, 0).bit_length()

    @property
    def share(self) -> float:
        """Share of the lanes that are padding, 0 to 1."""
        return 1.0 - self.extent / self.block


def padding(view: View, launch: Launch, facts: KernelFacts, name: str) -> Padding | None:
    """The padding of the block `name`, when at most half of it is used and all accesses over it are bounded by the same extent."""
    values = numbers(launch)
    block = values.get(name)
    if not isinstance(block, int):
        return None
    found: set[tuple[str, int]] = set()
    for access in facts.accesses:
        if not _spans(access, name):
            continue
        bound = _bound(access.mask_expanded or access.mask or "", name)
        value = values.get(bound, int(bound) if bound.isdigit() else None)
        if not isinstance(value, int) or value < 1:
            return None
        found.add((bound, value))
        sampled = view.access(launch.index, access.line)
        if sampled is not None and sampled.lanes >= block and sampled.active > 0.6:
            return None
    if len(found) != 1:
        return None
    bound, extent = found.pop()
    made = Padding(block=block, extent=extent, bound=bound)
    return made if 2 * made.enough <= block else None


def padding_gain(view: View, launch: Launch, facts: KernelFacts, found: Padding) -> tuple[float, float]:
    """Speedup (low, high) of the launch from the block that would do: fewer lanes to compute; the bytes stay the same."""
    cost = view.costs.get(launch.index)
    if cost is None:
        return 1.0, 1.0
    before = straight_issue_us(view, launch)
    if before is None:
        # Before compiling: about an instruction for each operation on a lane, three for each access with its address and mask.
        sums = 3 * len([o for o in facts.operations if o.kind in ("sum", "max", "min", "exp", "log", "truediv")])
        per_lane = 3 * len(facts.accesses) + 0.5 * len(facts.operations) + sums
        before = issue_us(launch.programs * found.block / 32 * per_lane, view.sms)
    before *= STALLS
    # What each program does once (its start, its reductions across warps) stays. Latency and compute of the cost model count the
    # padding too, so only the bytes bound what is left.
    after = before * max(found.enough / found.block, 0.08)
    memory = max(cost.dram_us, cost.l2_us)
    high = min(_together(memory, before) / _together(memory, after), 16.0)
    return 1.0 + (high - 1.0) * 0.5, high


def _together(memory: float, issue: float) -> float:
    return 1.0 + (memory**4 + issue**4) ** 0.25


def fitted(view: View, launch: Launch, facts: KernelFacts, name: str, found: Padding) -> str | None:
    """The file with the launch passing the next power of two of the extent for `name`; None where the block means more than that."""
    site = site_of(view, launch)
    if site is None or launch.call_file != view.source.path:
        return None
    text = view.text(view.source.path)
    try:
        file = SourceFile(text)
        function = file.function(launch.kernel)
        # Only ranges from 0, and shapes of tiles: nothing else may depend on the block.
        for call in (n for n in ast.walk(function) if isinstance(n, ast.BinOp)):
            if any(isinstance(n, ast.Name) and n.id == name for n in (call.left, call.right)):
                return None
        value = found.bound if found.bound.isdigit() else site.arguments.get(found.bound, "")
        passed = site.arguments.get(name, "")
        if not value or not pure(value) or not passed or "triton" not in {a.asname or a.name for a in _imports(file.tree)}:
            return None
        grid = file.grid_text(site.line)
        if name in grid or (passed.isidentifier() and passed in grid):
            return None
        file.set_launch_argument(site.line, name, f"triton.next_power_of_2({value})")
        return file.apply()
    except EditError:
        return None


def _imports(tree: ast.AST) -> list[ast.alias]:
    return [a for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]


def _spans(access: Access, name: str) -> bool:
    return any(_is_range(n, name) for n in ast.walk(parse(access.expanded or access.pointer) or ast.Constant(0)))


def _is_range(node: ast.AST, name: str) -> bool:
    """Whether it is `tl.arange(0, name)`."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).rsplit(".", 1)[-1] == "arange"
        and [ast.unparse(a) for a in node.args] == ["0", name]
    )


def _bound(mask: str, name: str) -> str:
    """X of `tl.arange(0, name) < X` in a mask, "" when the range is offset or compared in another way."""
    for node in ast.walk(parse(mask) or ast.Constant(0)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt):
            left, right = node.left, node.comparators[0]
            while isinstance(left, ast.Subscript):
                left = left.value
            if _is_range(left, name) and isinstance(right, ast.Name | ast.Constant):
                return ast.unparse(right)
    return ""

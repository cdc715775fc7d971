"""Rewrite (a) of TIL102: a second grid axis walks the row of an elementwise kernel in blocks."""

import ast

from leadline.model import KernelFacts, Launch
from leadline.rules.base import View
from leadline.rules.editing.dataflow import names_read
from leadline.rules.grid.body import callee
from leadline.rules.grid.launch_text import Text, grid_of, kernel_in, launches_of, opened, passed, set_keyword

# Calls that combine lanes: a block of the row would no longer see the others.
CROSSING = {
    "sum",
    "max",
    "min",
    "argmax",
    "argmin",
    "reduce",
    "associative_scan",
    "cumsum",
    "cumprod",
    "sort",
    "topk",
    "flip",
    "dot",
    "cat",
    "join",
    "split",
    "trans",
    "permute",
    "reshape",
    "view",
    "ravel",
    "histogram",
    "gather",
    "xor_sum",
    "interleave",
    "advance",
    "make_block_ptr",
    "make_tensor_descriptor",
}


def column_grid(view: View, launch: Launch, facts: KernelFacts, block: str, size: int, warps: int) -> str | None:
    """The file with `tl.arange(0, block)` shifted by a new program id, `block` = `size` at the launch and the grid longer by one axis.

    None unless every use of the block is that one range, no operation crosses lanes, every store covers the range under its bound
    `range < extent`, the extent is an argument, and all grids are plain tuples of at most two axes.
    """
    text = opened(view, facts.file)
    node = kernel_in(text, facts) if text else None
    if text is None or node is None or any(callee(n) in CROSSING for n in ast.walk(node)) or facts.loops:
        return None
    aranges = [n for n in ast.walk(node) if isinstance(n, ast.Call) and callee(n) == "arange" and block in names_read(n)]
    mentions = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == block]
    shapes = [n for n in ast.walk(node) if callee(n) in ("zeros", "full", "broadcast_to") and block in names_read(n)]
    if len(aranges) != 1 or len(mentions) != 1 + sum(1 for s in shapes for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == block):
        return None
    arange = aranges[0]
    if not (
        len(arange.args) == 2
        and isinstance(arange.args[0], ast.Constant)
        and arange.args[0].value == 0
        and ast.unparse(arange.args[1]) == block
    ):
        return None
    extent = range_extent(node, arange)
    stores = [a for a in facts.accesses if a.kind != "load"]
    if extent is None or not stores or any(not a.ranges or a.mask is None for a in stores):
        return None
    if any(arange.lineno not in a.ranges for a in stores):
        return None
    calls = launches_of(text, facts.name)
    axis = _new_axis(text, calls)
    if axis is None:
        return None
    for call in calls:
        if not _launch(text, call, node, block, extent, size, warps):
            return None
    written = text.of(arange)
    text.replace(
        arange,
        f"(tl.program_id({axis}) * {block} + {written})" if _nested(node, arange) else f"tl.program_id({axis}) * {block} + {written}",
    )
    return text.result()


def _nested(node: ast.FunctionDef, arange: ast.Call) -> bool:
    """Whether the range is part of a larger expression."""
    return not any(isinstance(s, ast.Assign) and s.value is arange for s in ast.walk(node))


def range_extent(node: ast.FunctionDef, arange: ast.Call) -> str | None:
    """N of the kernel's `range < N` comparison, when N is a parameter; None when there is no such comparison or there are several."""
    names = {t.id for s in ast.walk(node) if isinstance(s, ast.Assign) and s.value is arange for t in s.targets if isinstance(t, ast.Name)}
    found: set[str] = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Compare) and len(n.ops) == 1:
            left, right = n.left, n.comparators[0]
            if isinstance(n.ops[0], ast.Lt) and (left is arange or _is(left, names)):
                found.add(ast.unparse(right))
            elif isinstance(n.ops[0], ast.Gt) and (right is arange or _is(right, names)):
                found.add(ast.unparse(left))
    parameters = {a.arg for a in node.args.args}
    return found.pop() if len(found) == 1 and next(iter(found)) in parameters else None


def _is(node: ast.expr, names: set[str]) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def _new_axis(text: Text, calls: list[ast.Call]) -> int | None:
    sizes = {len(grid) if (grid := grid_of(text, c)) is not None else 9 for c in calls}
    return sizes.pop() if len(sizes) == 1 and max(sizes) <= 2 else None


def _launch(text: Text, call: ast.Call, node: ast.FunctionDef, block: str, extent: str, size: int, warps: int) -> bool:
    grid, length, given = grid_of(text, call), passed(call, node, extent), passed(call, node, block)
    if grid is None or length is None or given is None:
        return False
    last = text.span(grid[-1])[1]
    text.insert(last, f", triton.cdiv({text.of(length)}, {size})")
    text.replace(given, str(size))
    set_keyword(text, call, "num_warps", str(warps))
    return True

"""Rewrite of GRD106: output tiles of a matrix product in groups of rows."""

import ast
from typing import TYPE_CHECKING

from leadline.model import KernelFacts
from leadline.rules.base import View
from leadline.rules.grid.body import callee
from leadline.rules.grid.launch_text import kernel_in, opened

if TYPE_CHECKING:
    from leadline.rules.grid.l2_order import Order


def grouped_source(view: View, facts: KernelFacts, order: "Order", group: int) -> str | None:
    """The file with `pid // tiles` and `pid % tiles` replaced by row and column of the grouped order (`group` rows at a time).

    Any number of rows works: the last group is as high as the rows that are left. The order is a permutation of the same pairs.
    """
    text = opened(view, facts.file)
    node = kernel_in(text, facts) if text else None
    if text is None or node is None:
        return None
    statements = [
        s
        for s in node.body
        if s.lineno <= order.row.lineno <= (s.end_lineno or 0) or s.lineno <= order.column.lineno <= (s.end_lineno or 0)
    ]
    if not statements:
        return None
    first = min(statements, key=lambda s: s.lineno)
    taken = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {a.arg for a in node.args.args}
    if taken & {"tile_row", "tile_column", "group_start", "group_rows", "inside_group"}:
        return None
    indent = text.indent(first)
    tiles = order.tiles if order.tiles.isidentifier() else f"({order.tiles})"
    lines = [
        f"# Groups of {group} rows of tiles: programs that run together share more of both operands in L2.",
        f"group_start = {order.pid} // ({group} * {tiles}) * {group}",
        f"group_rows = tl.minimum(tl.num_programs(0) // {tiles} - group_start, {group})",
        f"inside_group = {order.pid} % ({group} * {tiles})",
        "tile_row = group_start + inside_group % group_rows",
        "tile_column = inside_group // group_rows",
    ]
    text.insert(text.starts[first.lineno - 1], "".join(f"{indent}{line}\n" for line in lines))
    for found, name in ((order.row, "tile_row"), (order.column, "tile_column")):
        start, end = text.span(found)
        inside = text.text[start - 1 : start] == "(" and text.text[end : end + 1] == ")" and not _called(node, found)
        text.edits.append((start - 1, end + 1, name) if inside else (start, end, name))
    return text.result()


def _called(node: ast.FunctionDef, expression: ast.expr) -> bool:
    """Whether the parentheses around an expression are those of a call."""
    place = (expression.lineno, expression.col_offset)
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any((a.lineno, a.col_offset) == place for n in calls for a in n.args) or bool(callee(expression))

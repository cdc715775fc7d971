"""Reading a kernel's body as statements: what each reads and writes, its text with its comments, the shape of an accessed tile."""

import ast
import textwrap

from leadline.model import Access, KernelFacts
from leadline.rules.editing.dataflow import names_read, names_written

__all__ = ["names_read", "names_written", "statements", "tile_shape"]


def statements(lines: list[str], nodes: list[ast.stmt]) -> list[tuple[ast.stmt, str]]:
    """(statement, its dedented text with the comment lines above it and the comment behind it).

    Two statements on one line are written one per line.
    """
    out: list[tuple[ast.stmt, str]] = []
    for position, node in enumerate(nodes):
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        shares = any(o is not node and o.lineno <= last and (o.end_lineno or o.lineno) >= node.lineno for o in nodes)
        if shares:
            out.append((node, ast.unparse(node) + "\n"))
            continue
        floor = (nodes[position - 1].end_lineno or 0) if position else 0
        start = first
        while start > floor and lines[start - 1].lstrip().startswith("#"):
            start -= 1
        out.append((node, textwrap.dedent("".join(lines[start:last])).rstrip("\n") + "\n"))
    return out


def tile_shape(kernel: KernelFacts, access: Access) -> str | None:
    """Text of the shape of an accessed tile, read from the aranges that its address is made of: "(BM, D)"; None when unknown.

    One-dimensional: the only arange. Two-dimensional: `a[:, None]` gives the rows and `b[None, :]` the columns.
    """
    try:
        pointer = ast.parse(access.expanded or access.pointer, mode="eval")
    except SyntaxError:
        return None
    sizes: dict[int, str] = {}
    holes = [n for n in ast.walk(pointer) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Tuple)]
    if not holes:
        found = {ast.unparse(n.args[-1]) for n in ast.walk(pointer) if isinstance(n, ast.Call) and _is_arange(n)}
        return f"({found.pop()},)" if len(found) == 1 else None
    for node in holes:
        assert isinstance(node.slice, ast.Tuple)
        kept = [i for i, e in enumerate(node.slice.elts) if isinstance(e, ast.Slice)]
        found = {ast.unparse(n.args[-1]) for n in ast.walk(node.value) if isinstance(n, ast.Call) and _is_arange(n)}
        if len(kept) != 1 or len(found) != 1:
            return None
        size = found.pop()
        if sizes.setdefault(kept[0], size) != size:
            return None
    if sorted(sizes) != list(range(len(sizes))):
        return None
    return "(" + ", ".join(sizes[i] for i in range(len(sizes))) + ("," if len(sizes) == 1 else "") + ")"


def _is_arange(node: ast.Call) -> bool:
    return ast.unparse(node.func).rsplit(".", 1)[-1] == "arange" and bool(node.args)

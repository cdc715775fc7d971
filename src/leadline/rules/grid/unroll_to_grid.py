"""Rewrite of GRD102: a loop over independent items becomes a factor of the grid."""

import ast
import textwrap

from leadline.model import KernelFacts
from leadline.rules.base import View
from leadline.rules.editing.dataflow import names_written
from leadline.rules.grid.body import callee, program_axis, program_calls
from leadline.rules.grid.launch_text import Text, bracketed, grid_of, kernel_in, launches_of, on_host, opened


def loop_to_grid(view: View, facts: KernelFacts, function: ast.FunctionDef, loop: ast.For) -> str | None:
    """The file with the loop's variable taken from the program id of a grid axis that is as many times longer.

    None unless the loop is the kernel's last statement, counts from 0 in steps of 1 to an argument or a number, is left by no
    `break`, `continue` or `return`, and every launch's grid is a plain tuple.
    """
    text = opened(view, facts.file)
    node = kernel_in(text, facts) if text else None
    if text is None or node is None:
        return None
    body = next((n for n in node.body if isinstance(n, ast.For) and n.lineno == loop.lineno), None)
    if body is None or node.body[-1] is not body or body.orelse or not isinstance(body.target, ast.Name):
        return None
    if any(isinstance(n, ast.Break | ast.Continue | ast.Return) for n in ast.walk(body)):
        return None
    count = _count(body)
    calls = launches_of(text, facts.name)
    if count is None or not calls:
        return None
    axis = _axis(node, calls, text)
    if axis is None:
        return None
    for call in calls:
        grid = grid_of(text, call)
        host = on_host(text, call, node, ast.unparse(count))
        if grid is None or host is None or axis >= len(grid):
            return None
        extent = text.of(grid[axis])
        text.replace(grid[axis], f"{bracketed(extent)} * {bracketed(host)}")
    shown = bracketed(ast.unparse(count))
    variable = body.target.id
    if body.body[0].lineno <= (body.iter.end_lineno or 0):
        return None  # the loop stands on one line
    indent = text.indent(body)
    inner = _unindented(text, body, indent, [])
    ids = program_calls(node, axis)
    combined = _combined(node, body, axis, shown)
    start = text.starts[body.lineno - 1]
    end = text.block([body])[1]
    if combined is not None:
        name, statement, products = combined
        # pid * COUNT + i is the program id of the longer axis itself.
        replaced = _unindented(text, body, indent, [(*text.span(p), f"tl.program_id({axis})") for p in products])
        if variable not in _names(replaced) and name not in _names(replaced) and _only_use(node, name, body):
            text.edits.append((*text.block([statement]), ""))
            text.edits.append((start, end, replaced))
            return text.result()
    for call in ids:
        if call.lineno < body.lineno:
            text.replace(call, f"({text.of(call)} // {shown})")
    if any(call.lineno >= body.lineno for call in ids):
        return None
    text.edits.append((start, end, f"{indent}{variable} = tl.program_id({axis}) % {shown}\n{inner}"))
    return text.result()


def _unindented(text: Text, loop: ast.For, indent: str, edits: list[tuple[int, int, str]]) -> str:
    """The loop's body at the loop's own indentation, its first comments included, with the edits (start, end, new) made."""
    start, end = text.starts[loop.iter.end_lineno or loop.lineno], text.block(list(loop.body))[1]
    whole = text.text[start:end]
    for first, last, new in sorted(edits, reverse=True):
        whole = whole[: first - start] + new + whole[last - start :]
    header, hash_sign, comment = text.text[text.span(loop.iter)[1] : start].partition("#")
    kept = f"{indent}#{comment}" if hash_sign and header.strip() == ":" else ""
    return kept + textwrap.indent(textwrap.dedent(whole), indent)


def _names(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(textwrap.dedent(text))) if isinstance(n, ast.Name)}


def _count(loop: ast.For) -> ast.expr | None:
    """N of `range(N)`, `range(0, N)` or `tl.range(...)` of the same form."""
    call = loop.iter
    if not isinstance(call, ast.Call) or callee(call) not in ("range", "static_range") or (call.keywords and callee(call) == ""):
        return None
    if len(call.args) == 1:
        return call.args[0]
    plain = len(call.args) == 2 or (isinstance(call.args[2], ast.Constant) and call.args[2].value == 1)
    zero = isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
    return call.args[1] if len(call.args) in (2, 3) and zero and plain else None


def _axis(node: ast.FunctionDef, calls: list[ast.Call], text: Text) -> int | None:
    """The grid axis to lengthen: 0, which has no limit of 65535, when all launches give it and the kernel reads no grid extents."""
    if any(callee(n) == "num_programs" for n in ast.walk(node)):
        return None
    return 0 if all(grid_of(text, c) for c in calls) else None


def _combined(node: ast.FunctionDef, body: ast.For, axis: int, count: str) -> tuple[str, ast.stmt, list[ast.BinOp]] | None:
    """(name, statement, products): `name = tl.program_id(axis)` before the loop and every `name * count + variable` inside it."""
    variable = body.target.id if isinstance(body.target, ast.Name) else ""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and program_axis(statement.value) == axis and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            forms = (f"{name} * {count} + {variable}", f"{variable} + {name} * {count}", f"{count} * {name} + {variable}")
            products = [n for n in ast.walk(body) if isinstance(n, ast.BinOp) and ast.unparse(n) in forms]
            if products:
                return name, statement, products
    return None


def _only_use(node: ast.FunctionDef, name: str, body: ast.For) -> bool:
    outside = [
        n
        for s in node.body
        if s is not body
        for n in ast.walk(s)
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]
    return not outside and name not in names_written(body)

"""Rewrite of GRD103: one program does the work of several neighbours along one grid axis."""

import ast
import textwrap
from collections.abc import Iterable

from leadline.model import KernelFacts, Launch
from leadline.rules.base import View
from leadline.rules.editing.dataflow import names_read, names_written
from leadline.rules.grid.body import after_docstring, callee, depends, program_axis, program_calls, touches
from leadline.rules.grid.launch_text import Text, bracketed, grid_of, kernel_in, launches_of, opened, set_keyword
from leadline.rules.grid.work import widest

LEAST_PER_THREAD = 2


def coarsened(view: View, launch: Launch, facts: KernelFacts, group: int) -> Iterable[tuple[int, str]]:
    """(axis, file) for each grid axis of at least `group` programs: axes whose neighbours share loads first.

    The statements that depend on the axis run in an unrolled loop over GROUP ids; GROUP is 1 on the host where it does not divide the axis.
    """
    shared = {axis: sum(1 for a in facts.accesses if a.kind == "load" and axis not in a.axes) for axis in range(3)}
    axes = [axis for axis in range(3) if launch.grid[axis] >= group and any(axis in a.axes for a in facts.accesses)]
    for axis in sorted(axes, key=lambda x: (-shared[x], -launch.grid[x]))[:1]:
        if source := _along(view, launch, facts, axis, group):
            yield axis, source


def _along(view: View, launch: Launch, facts: KernelFacts, axis: int, group: int) -> str | None:
    text = opened(view, facts.file)
    node = kernel_in(text, facts) if text else None
    if text is None or node is None or any(isinstance(n, ast.Return) for n in ast.walk(node)):
        return None
    if any(callee(n) in ("num_programs", "atomic_cas", "debug_barrier") for n in ast.walk(node)):
        return None
    name = _free("GROUP", node)
    calls = launches_of(text, facts.name)
    body = after_docstring(node)
    definition = next((s for s in body if isinstance(s, ast.Assign) and program_calls(s, axis)), None)
    if not calls or definition is None or len(program_calls(node, axis)) != 1:
        return None
    parts = _parted(body, axis, depends(node, axis), definition)
    if parts is None:
        return None
    outside, inside = parts
    for call in calls:
        if not _host(text, call, axis, group, name, view, launch, facts):
            return None
    index = _free("g", node)
    indent = text.indent(body[0])
    identifier = text.of(program_calls(node, axis)[0])
    lines = [_written(text, s, indent, body) for s in outside]
    lines.append(f"{indent}for {index} in tl.static_range({name}):\n")
    for statement in inside:
        written = _written(text, statement, indent + "    ", body)
        if statement is definition:
            whole = program_axis(definition.value) == axis
            joined = f"{identifier} * {name} + {index}"
            written = written.replace(identifier, joined if whole else f"({joined})", 1)
        lines.append(written)
    text.edits.append((text.starts[_first_line(text, body[0], node) - 1], text.block([body[-1]])[1], "".join(lines)))
    last = (node.args.kwonlyargs or node.args.args)[-1]
    end = text.span(last)[1]
    if last.annotation is None and node.args.defaults:
        return None
    default = node.args.defaults[-1] if node.args.defaults and not node.args.kwonlyargs else None
    text.insert(text.span(default)[1] if default else end, f", {name}: tl.constexpr" + (" = 1" if default else ""))
    return text.result()


def _first_line(text: Text, statement: ast.stmt, node: ast.FunctionDef) -> int:
    line = statement.lineno
    while line - 1 > node.lineno and text.lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return line


def _parted(body: list[ast.stmt], axis: int, tainted: set[str], definition: ast.Assign) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
    """Statements that stay outside the loop (they do not depend on the axis) and those inside, both in order; None if that reorders memory.

    An independent statement is moved up only before the first dependent store; after it, everything goes into the loop.
    """
    outside: list[ast.stmt] = []
    inside: list[ast.stmt] = []
    stored = False
    for statement in body:
        moves = statement is not definition and not touches(statement, axis, tainted) and not (names_written(statement) & tainted)
        writes = any(callee(n) == "store" or callee(n).startswith("atomic") for n in ast.walk(statement))
        if moves and not stored and not writes:
            # A later redefinition of a name that the loop's statements read would change what they see.
            if any(names_written(statement) & (names_read(s) | names_written(s)) for s in inside):
                return None
            outside.append(statement)
        else:
            if writes and not touches(statement, axis, tainted) and callee_writes_atomically(statement):
                return None
            inside.append(statement)
        stored |= writes
    # Values carried from one neighbour to the next (x += ... on a name from outside) would mix neighbours.
    for statement in inside:
        if isinstance(statement, ast.AugAssign):
            target = names_read(statement.target) | names_written(statement)
            if any(target <= names_written(o) | {"_"} for o in outside):
                return None
    return (outside, inside) if inside and definition in inside else None


def callee_writes_atomically(statement: ast.stmt) -> bool:
    """Whether a statement holds an atomic update."""
    return any(callee(n).startswith("atomic") for n in ast.walk(statement))


def _written(text: Text, statement: ast.stmt, indent: str, body: list[ast.stmt]) -> str:
    """The statement's lines with the comments above it, at another indentation."""
    at = body.index(statement)
    floor = body[at - 1].end_lineno or 0 if at else 0
    first = statement.lineno
    while first - 1 > floor and text.lines[first - 2].lstrip().startswith("#"):
        first -= 1
    whole = "".join(text.lines[first - 1 : statement.end_lineno])
    return textwrap.indent(textwrap.dedent(whole), indent)


def _host(text: Text, call: ast.Call, axis: int, group: int, name: str, view: View, launch: Launch, facts: KernelFacts) -> bool:
    grid = grid_of(text, call)
    if grid is None or axis >= len(grid) or any(k.arg == name for k in call.keywords):
        return False
    extent = text.of(grid[axis])
    text.replace(grid[axis], f"{bracketed(extent)} // ({group} if {bracketed(extent)} % {group} == 0 else 1)")
    lanes, _ = widest(view, launch, facts)
    warps = launch.option("num_warps", 4)
    # No more threads than give each of them two elements: the rest would only repeat the work of others.
    fitting = warps
    while fitting > 1 and lanes < fitting * 32 * LEAST_PER_THREAD:
        fitting //= 2
    set_keyword(text, call, name, f"{group} if {bracketed(extent)} % {group} == 0 else 1")
    if fitting != warps:
        given = next((k for k in call.keywords if k.arg == "num_warps"), None)
        if given is not None:
            text.replace(given.value, str(fitting))
        else:
            start, end, new = text.edits.pop()
            text.edits.append((start, end, f"{new}, num_warps={fitting}"))
    return True


def _free(base: str, node: ast.FunctionDef) -> str:
    """`base`, or `base` with a number when the kernel already uses it."""
    taken = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
    return next(n for n in [base, *(f"{base}{k}" for k in range(2, 50))] if n not in taken)

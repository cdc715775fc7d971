"""`while k < end: ...; k += step` as a `for` loop, which the pipeliner takes."""

import ast
from collections.abc import Iterable

from leadline.rules.editing import EditError, SourceFile
from leadline.rules.editing.dataflow import names_written

_PURE = ("cdiv", "min", "max", "minimum", "maximum", "to", "program_id", "num_programs")


def counted(text: str, kernel: str, line: int, stages: int = 0) -> str:
    """The file with the `while` at `line` of `kernel` written as `for k in range(start, end, step)`; "" when it is of another form.

    Its counter must be initialised once, in the same block, and incremented once, by the last statement, by a step that the loop does
    not change; it is not used outside of the loop, and nothing leaves the loop early. With `stages` the iterator is
    `tl.range(..., num_stages=stages)`.
    """
    function = next((n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == kernel), None)
    for block in _blocks(function) if function else ():
        for position, loop in enumerate(block):
            if isinstance(loop, ast.While) and loop.lineno == line and function is not None:
                return _rewritten(text, function, block[:position], loop, stages)
    return ""


def _blocks(function: ast.FunctionDef) -> Iterable[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block


def _rewritten(text: str, function: ast.FunctionDef, before: list[ast.stmt], loop: ast.While, stages: int) -> str:
    found = _bound(loop.test)
    if found is None or loop.orelse or any(isinstance(n, ast.Break | ast.Continue | ast.Return) for n in ast.walk(loop)):
        return ""
    counter, end = found
    last = loop.body[-1]
    step = _step(last, counter)
    start = next((s for s in reversed(before) if counter in names_written(s)), None)
    if step is None or len(loop.body) < 2 or not isinstance(start, ast.Assign) or ast.unparse(start.targets[0]) != counter:
        return ""
    uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == counter]
    inside = {id(n) for n in ast.walk(loop)}
    if sum(isinstance(n.ctx, ast.Store) for n in uses) != 2 or any(isinstance(n.ctx, ast.Load) and id(n) not in inside for n in uses):
        return ""
    changed = {name for s in loop.body for name in names_written(s)} | {counter}
    between = {name for s in before[before.index(start) + 1 :] for name in names_written(s)}
    if not (_fixed(end, changed) and _fixed(step, changed) and _fixed(start.value, between | {counter})):
        return ""
    if isinstance(step, ast.Constant) and not (isinstance(step.value, int) and step.value > 0):
        return ""
    file = SourceFile(text)
    bounds = ", ".join(ast.get_source_segment(text, n) or ast.unparse(n) for n in (start.value, end, step))
    iterator = f"{file.triton_language()}.range({bounds}, num_stages={stages})" if stages else f"range({bounds})"
    try:
        header = file.layout.offset(loop.lineno, loop.col_offset)
        colon = text.index(":", file.layout.span(loop.test)[1])
        file.replace(header, colon, f"for {counter} in {iterator}")
        for statement in (start, last):
            if not _removed(file, statement):
                return ""
        return file.apply()
    except (EditError, ValueError):
        return ""


def _removed(file: SourceFile, statement: ast.stmt) -> bool:
    """Takes the statement's line away, its trailing comment stays; whether it stands alone on one line."""
    number = statement.lineno
    whole = file.layout.line_text(number)
    place = file.layout.offset(number, 0)
    first, end = file.layout.span(statement)
    rest = whole[end - place :].strip()
    if statement.end_lineno != number or whole[: first - place].strip() or (rest and not rest.startswith("#")):
        return False
    if rest:
        file.replace(first, place + len(whole.rstrip()), rest)
    else:
        file.replace(place, file.layout.next_line(number), "")
    return True


def _bound(test: ast.expr) -> tuple[str, ast.expr] | None:
    """(counter, end) of `counter < end` or `end > counter`."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Lt()], comparators=[end]):
            return name, end
        case ast.Compare(left=end, ops=[ast.Gt()], comparators=[ast.Name(id=name)]):
            return name, end
        case _:
            return None


def _step(statement: ast.stmt, counter: str) -> ast.expr | None:
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=step) if name == counter:
            return step
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(left=ast.Name(id=again), op=ast.Add(), right=step)) if (
            name == again == counter
        ):
            return step
        case _:
            return None


def _fixed(node: ast.expr, changed: set[str]) -> bool:
    """Whether the expression has one value throughout: no changed name in it, and no call that could load."""
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and n.id in changed:
            return False
        if isinstance(n, ast.Call) and ast.unparse(n.func).rsplit(".", 1)[-1] not in _PURE:
            return False
    return True

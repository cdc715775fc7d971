"""Moves a loop-invariant load in front of its loop."""

import ast

from leadline.model import Launch
from leadline.rules.base import View
from leadline.rules.editing import EditError, SourceFile


def hoisted(view: View, launch: Launch, line: int) -> str | None:
    """The file with the assignment `name = tl.load(...)` at `line` moved before the innermost loop around it; None when a name it
    reads is set in the loop, the loop stores through the same pointer, the load sits under a condition, or the loop may not run."""
    facts = view.kernel(launch)
    access = next((a for a in facts.accesses if a.line == line and a.kind == "load"), None) if facts else None
    if launch.kernel_file != view.source.path or access is None or access.branch >= 0 or access.base is None or facts is None:
        return None
    file = SourceFile(view.text(view.source.path))
    try:
        node = file.function(launch.kernel)
    except EditError:
        return None
    loop = next((n for n in ast.walk(node) if isinstance(n, ast.For) and any(getattr(s, "lineno", 0) == line for s in n.body)), None)
    statement = next((s for s in loop.body if s.lineno == line), None) if loop else None
    if (
        loop is None
        or not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
    ):
        return None
    name = statement.targets[0].id
    stored = {n.id for s in (loop, *loop.body) for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    read = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
    set_again = sum(1 for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store))
    writes = [a for a in facts.accesses if a.kind != "load" and a.loop >= 0 and a.base in (access.base, None)]
    if read & stored or set_again != 1 or writes:
        return None
    # Two pointers may name one storage.
    storages = {a.name: a.tensor.storage for a in launch.arguments if a.tensor is not None}
    if any(a.kind != "load" and storages.get(a.base or "") == storages.get(access.base) for a in facts.accesses):
        return None
    seen = next((x for x in (view.samples[launch.index].loops if launch.index in view.samples else ()) if x.line == loop.lineno), None)
    if access.mask is None and (seen is None or seen.trips_min < 1):
        return None
    try:
        file.insert_before(loop.lineno, file.layout.of(statement))
        file.delete_statement(line)
        return file.apply()
    except EditError:
        return None

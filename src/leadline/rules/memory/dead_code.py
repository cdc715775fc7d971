"""Assignments that nothing reads any more after a rewrite, and their removal."""

import ast

from leadline.rules.editing import EditError, SourceFile

# Calls without effect: an assignment of one of these may go when nothing reads it.
WITHOUT_EFFECT = (
    "arange",
    "program_id",
    "num_programs",
    "cdiv",
    "to",
    "len",
    "numel",
    "size",
    "stride",
    "next_power_of_2",
    "min",
    "max",
    "where",
)


def unused(function: ast.FunctionDef) -> list[ast.Assign]:
    """Assignments to one plain name that nothing in the function reads, with a right side free of effects."""
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    found: list[ast.Assign] = []
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id not in read
        ):
            calls = [ast.unparse(c.func).rsplit(".", 1)[-1] for c in ast.walk(node.value) if isinstance(c, ast.Call)]
            if all(c in WITHOUT_EFFECT for c in calls):
                found.append(node)
    return found


def unused_names(text: str) -> dict[str, set[str]]:
    """Function -> names it assigns and never reads, before a rewrite: those are the author's and stay."""
    return {
        f.name: {n.targets[0].id for n in unused(f) if isinstance(n.targets[0], ast.Name)}
        for f in ast.walk(ast.parse(text))
        if isinstance(f, ast.FunctionDef)
    }


def without_unused(text: str, before: dict[str, set[str]]) -> str:
    """The file without the assignments that nothing reads, except those named in `before` and those of new functions."""
    while True:
        file = SourceFile(text)
        lines: list[int] = []
        for function in [n for n in ast.walk(file.tree) if isinstance(n, ast.FunctionDef) and n.name in before]:
            lines += [
                n.lineno for n in unused(function) if isinstance(n.targets[0], ast.Name) and n.targets[0].id not in before[function.name]
            ]
        if not lines:
            return text
        try:
            for line in set(lines):
                file.delete_statement(line)
            text = file.apply()
        except EditError:
            return text

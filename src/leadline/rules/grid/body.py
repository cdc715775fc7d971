"""Reading a kernel's body: statements, the names they use and define, and what depends on what."""

import ast

from leadline.model import KernelFacts, Loop
from leadline.rules.base import View
from leadline.rules.editing.dataflow import names_read

ZEROES = ("zeros", "zeros_like", "full", "full_like")


def function(view: View, facts: KernelFacts) -> ast.FunctionDef | None:
    """The kernel's definition, with the line numbers of its file; None when its text is not at hand."""
    try:
        tree = ast.parse(view.text(facts.file))
    except SyntaxError:
        return None
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == facts.name]
    return min(found, key=lambda n: abs(n.lineno - facts.line), default=None)


def loop_node(node: ast.FunctionDef, line: int) -> ast.For | ast.While | None:
    """The loop statement that starts at `line`."""
    return next((n for n in ast.walk(node) if isinstance(n, ast.For | ast.While) and n.lineno == line), None)


def callee(node: ast.AST) -> str:
    """The last part of a call's function name; "" when `node` is no call of a name."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def program_axis(node: ast.AST) -> int | None:
    """The axis of a `tl.program_id` call, or None."""
    if callee(node) != "program_id" or not isinstance(node, ast.Call):
        return None
    axis = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "axis"), None)
    return axis.value if isinstance(axis, ast.Constant) and isinstance(axis.value, int) else None


def program_calls(node: ast.AST, axis: int) -> list[ast.Call]:
    """All `tl.program_id(axis)` calls inside `node`."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Call) and program_axis(n) == axis]


def depends(node: ast.FunctionDef, axis: int) -> set[str]:
    """Names whose value depends on the program id of `axis`, directly or through other names (flow-insensitive)."""
    tainted: set[str] = set()
    while True:
        before = len(tainted)
        for statement in ast.walk(node):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For) and touches(statement, axis, tainted, head=True):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    tainted |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        if len(tainted) == before:
            return tainted


def touches(node: ast.AST, axis: int, tainted: set[str], *, head: bool = False) -> bool:
    """Whether `node` names `tainted` or the program id of `axis`; of a loop with `head`, only its bounds count."""
    part = node.iter if head and isinstance(node, ast.For) else node
    return bool(names_read(part) & tainted) or bool(program_calls(part, axis))


def after_docstring(node: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function after its docstring."""
    body = node.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
        return body[1:]
    return body


def reset_by(view: View, facts: KernelFacts, loop: Loop) -> str:
    """The test of a branch on loaded data that starts the loop's carried tiles afresh; "" when there is none."""
    node = function(view, facts)
    body = loop_node(node, loop.line) if node else None
    if body is None:
        return ""
    carried = set(loop.carried)
    for branch in ast.walk(body):
        if not isinstance(branch, ast.If):
            continue
        reset = {
            t.id for s in branch.body if isinstance(s, ast.Assign) and fresh(s.value) for t in s.targets if isinstance(t, ast.Name)
        } & carried
        fact = next((b for b in facts.branches if b.line == branch.lineno), None)
        if reset and (fact is None or fact.loaded):
            return ast.unparse(branch.test)
    for statement in ast.walk(body):
        # s = tl.where(boundary, 0.0, s) is the same reset without a branch.
        if isinstance(statement, ast.Assign) and callee(statement.value) == "where" and isinstance(statement.value, ast.Call):
            name = statement.targets[0].id if isinstance(statement.targets[0], ast.Name) else ""
            parts = statement.value.args
            if name in carried and len(parts) == 3 and (fresh(parts[1]) or fresh(parts[2])) and names_read(parts[0]) & _loaded(facts):
                return ast.unparse(parts[0])
    return ""


def _loaded(facts: KernelFacts) -> set[str]:
    return {s.name for s in facts.symbols if s.loaded}


def fresh(node: ast.AST) -> bool:
    """Whether an expression is a constant start value: a number, `tl.zeros`, `tl.full`, or one of them negated, cast or times 0."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.UnaryOp):
        return fresh(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return any(isinstance(x, ast.Constant) and x.value == 0 for x in (node.left, node.right))
    if isinstance(node, ast.Call) and callee(node) == "float":
        return True
    return callee(node) in ZEROES or (
        callee(node) == "to" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and fresh(node.func.value)
    )

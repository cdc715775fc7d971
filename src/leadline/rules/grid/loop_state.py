"""What a loop carries, and whether partial results of it can be combined: sums, maxima, and the running statistics of a softmax."""

import ast

from leadline.rules.editing.dataflow import names_read, names_written
from leadline.rules.grid.body import callee

COMBINED = {"maximum": "max", "minimum": "min"}


class State:
    """One carried value. `kind`: sum, max, min, peak (the running maximum of a softmax), scaled (rescaled by it) or pointer (advanced).

    `init`: its value before the loop. `shape`: texts of its extents, () for a scalar. `broadcast`: the subscript with which the
    rescaling factor meets it ("[:, None]"). `advance`: what a pointer moves by in one iteration.
    """

    def __init__(self, name: str, kind: str, init: ast.expr, shape: tuple[str, ...], broadcast: str = "", advance: str = "") -> None:
        self.name, self.kind, self.init, self.shape, self.broadcast, self.advance = name, kind, init, shape, broadcast, advance


class Peak:
    """The running maximum: its name, the name of its next value, the exponential that the loop uses."""

    def __init__(self, name: str, following: str, exponential: str, factors: set[str]) -> None:
        self.name, self.following, self.exponential, self.factors = name, following, exponential, factors

    def is_factor(self, node: ast.expr) -> str | None:
        """The subscript of a rescaling factor ("" without one), or None when the expression is none."""
        subscript = ""
        if isinstance(node, ast.Subscript):
            subscript, node = "[" + ast.unparse(node.slice).removeprefix("(").removesuffix(")") + "]", node.value
        if isinstance(node, ast.Name) and node.id in self.factors:
            return subscript
        return subscript if _exponential(node, self.name, self.following) else None


def states_of(function: ast.FunctionDef, loop: ast.For) -> list[State] | None:
    """The values the loop carries; None when one of them is not of a kind that can be combined from parts."""
    before = _initial(function, loop)
    inside = names_written(ast.Module(body=loop.body, type_ignores=[]))
    carried = [n for n in sorted(inside & set(before)) if _lives(loop, n, function)]
    straight = all(isinstance(s, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr) for s in loop.body)
    if not carried or not straight:
        return None
    peak = _peak(loop, set(carried))
    found: list[State] = []
    for name in carried:
        state = _state(name, before[name], loop, peak)
        if state is None:
            return None
        found.append(state)
    return found if any(s.kind != "pointer" for s in found) else None


def _initial(function: ast.FunctionDef, loop: ast.For) -> dict[str, ast.expr]:
    values: dict[str, ast.expr] = {}
    for statement in function.body:
        if statement is loop:
            break
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = statement.value
    return values


def _lives(loop: ast.For, name: str, function: ast.FunctionDef) -> bool:
    """Whether a name's value flows from one iteration to the next, or out of the loop."""
    at = function.body.index(loop)
    if any(name in names_read(s) for s in function.body[at + 1 :]):
        return True
    for statement in loop.body:
        if name in names_read(statement):
            return True
        if name in names_written(statement):
            return False
    return False


def _exponential(node: ast.expr, old: str, new: str) -> str:
    """The function's text when `node` is exp(old - new); "" otherwise."""
    if isinstance(node, ast.Call) and callee(node) in ("exp", "exp2", "fast_expf") and len(node.args) == 1:
        return ast.unparse(node.func) if ast.unparse(node.args[0]) == f"{old} - {new}" else ""
    return ""


def _peak(loop: ast.For, carried: set[str]) -> Peak | None:
    """The running maximum of an online softmax: `new = maximum(old, ...)`, a factor exp(old - new), and `old = new` at the end."""
    for statement in loop.body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name) and isinstance(statement.targets[0], ast.Name)):
            continue
        old, new = statement.targets[0].id, statement.value.id
        makes = [
            s.value for s in loop.body if isinstance(s, ast.Assign) and any(isinstance(t, ast.Name) and t.id == new for t in s.targets)
        ]
        if old not in carried or len(makes) != 1:
            continue
        made = makes[0]
        if callee(made) not in ("maximum", "max") or old not in names_read(made):
            continue
        factors: set[str] = set()
        exponential = ""
        for node in ast.walk(loop):
            if isinstance(node, ast.expr) and (text := _exponential(node, old, new)):
                exponential = text
        for other in loop.body:
            if isinstance(other, ast.Assign) and _exponential(other.value, old, new) and isinstance(other.targets[0], ast.Name):
                factors.add(other.targets[0].id)
        if exponential:
            return Peak(old, new, exponential, factors)
    return None


def _state(name: str, init: ast.expr, loop: ast.For, peak: Peak | None) -> State | None:
    shape = shape_of(init)
    updates = [s for s in loop.body if name in names_written(s)]
    if shape is None:
        # A pointer: moved by the same amount every time, and nothing else of the loop goes into that amount.
        if len(updates) == 1 and isinstance(updates[0], ast.AugAssign) and isinstance(updates[0].op, ast.Add):
            step = updates[0].value
            fixed = not names_read(step) & (names_written(loop) | {name})
            return State(name, "pointer", init, (), advance=ast.unparse(step)) if fixed else None
        return None
    if peak and name == peak.name:
        return State(name, "peak", init, shape, broadcast=peak.exponential)
    scaled, broadcast = 0, ""
    for update in updates:
        if isinstance(update, ast.AugAssign):
            if isinstance(update.op, ast.Mult) and peak and (found := peak.is_factor(update.value)) is not None:
                scaled, broadcast = scaled + 1, found
            elif not isinstance(update.op, ast.Add) or name in names_read(update.value):
                return None
            continue
        if not isinstance(update, ast.Assign):
            return None
        value = update.value
        if callee(value) in COMBINED and isinstance(value, ast.Call) and len(value.args) == 2 and len(updates) == 1:
            sides = [a for a in value.args if isinstance(a, ast.Name) and a.id == name]
            rest = [a for a in value.args if name not in names_read(a)]
            return State(name, COMBINED[callee(value)], init, shape) if len(sides) == 1 and len(rest) == 1 else None
        found = _linear(value, name, peak)
        if found is None:
            return None
        if found[0]:
            scaled, broadcast = scaled + 1, found[1]
    if not _zero(init) or scaled > 1 or (peak and not scaled):
        return None
    return State(name, "scaled" if scaled else "sum", init, shape, broadcast=broadcast)


def _linear(node: ast.expr, name: str, peak: Peak | None) -> tuple[bool, str] | None:
    """(rescaled, subscript) when the expression is `name` (perhaps times the factor) plus something without it; None otherwise."""
    if isinstance(node, ast.Name) and node.id == name:
        return False, ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Name) and one.id == name and peak and (found := peak.is_factor(other)) is not None:
                return True, found
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        if name in names_read(node.left) and name not in names_read(node.right):
            return _linear(node.left, name, peak)
        if isinstance(node.op, ast.Add) and name in names_read(node.right) and name not in names_read(node.left):
            return _linear(node.right, name, peak)
        return None
    if callee(node) == "dot" and isinstance(node, ast.Call):
        start = node.args[2] if len(node.args) > 2 else next((k.value for k in node.keywords if k.arg == "acc"), None)
        rest = [*node.args[:2], *[k.value for k in node.keywords if k.value is not start]]
        return _linear(start, name, peak) if start is not None and not any(name in names_read(r) for r in rest) else None
    if callee(node) == "fma" and isinstance(node, ast.Call) and len(node.args) == 3:
        return _linear(node.args[2], name, peak) if not any(name in names_read(a) for a in node.args[:2]) else None
    return None


def shape_of(init: ast.expr) -> tuple[str, ...] | None:
    """Extents of a floating start value: () for a number, those of tl.zeros or tl.full in float32; None for anything else."""
    if isinstance(init, ast.UnaryOp):
        return shape_of(init.operand)
    if isinstance(init, ast.Constant):
        return () if isinstance(init.value, float) else None
    if isinstance(init, ast.Call) and callee(init) == "float":
        return ()
    if isinstance(init, ast.BinOp):
        parts = [shape_of(p) for p in (init.left, init.right)]
        return next((p for p in parts if p), None) if any(parts) else (() if all(p is not None for p in parts) else None)
    if isinstance(init, ast.Call) and callee(init) in ("zeros", "full") and "float32" in ast.unparse(init):
        shape = init.args[0] if init.args else next((k.value for k in init.keywords if k.arg == "shape"), None)
        return tuple(ast.unparse(e) for e in shape.elts) if isinstance(shape, ast.Tuple | ast.List) and 1 <= len(shape.elts) <= 2 else None
    return None


def _zero(init: ast.expr) -> bool:
    if isinstance(init, ast.Constant):
        return init.value == 0
    if callee(init) == "zeros":
        return True
    return (
        isinstance(init, ast.Call)
        and callee(init) == "full"
        and len(init.args) > 1
        and isinstance(init.args[1], ast.Constant)
        and init.args[1].value == 0
    )

"""Tiles that a comparison of positions discards: which they are, how many, and the loop bounds that leave them out."""

import ast
from collections.abc import Iterator

from leadline.model import KernelFacts, Launch, Loop, Record
from leadline.rules.base import View
from leadline.rules.editing.dataflow import names_read
from leadline.rules.grid.body import callee, loop_node
from leadline.rules.grid.work import bounds, definition, known_bounds, parse

NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
SAMPLES = 48


class Visible(Record, frozen=True):
    """`left OP right` must hold for an element to count; `line` is where it is written."""

    left: str
    op: str  # Lt LtE Gt GtE
    right: str
    line: int


class Term(Record, frozen=True):
    """One summand of a linear form: an expression text, its sign, and whether it is the loop variable or a `tl.arange` (then `size`)."""

    text: str
    sign: int
    kind: str = "atom"  # atom | loop | range
    size: str = ""


def conditions(function: ast.FunctionDef, inside: ast.AST, facts: KernelFacts) -> Iterator[Visible]:
    """Comparisons that decide, in `inside`, which elements count: the condition of a `tl.where` with one constant arm, or a load's mask.

    Only conjunctions are followed (`&`), through names; a name used under `|` or `~` is left out.
    """
    seen: set[tuple[str, str, str]] = set()
    for node in ast.walk(inside):
        if not isinstance(node, ast.Call):
            continue
        tests: list[tuple[ast.expr, bool]] = []
        if callee(node) == "where" and len(node.args) == 3:
            if neutral(node.args[2], function):
                tests.append((node.args[0], True))
            elif neutral(node.args[1], function):
                tests.append((node.args[0], False))
        elif callee(node) == "load":
            tests += [(k.value, True) for k in node.keywords if k.arg == "mask"]
            tests += [(node.args[1], True)] if len(node.args) > 1 else []
        for test, wanted in tests:
            for found in _conjuncts(test, wanted, function, 0):
                key = (found.left, found.op, found.right)
                if key not in seen:
                    seen.add(key)
                    yield found


def neutral(node: ast.expr, function: ast.FunctionDef, depth: int = 0) -> bool:
    """Whether an arm of `tl.where` is a constant: a number, `float("-inf")`, `-1e30`, or a name bound once to one."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.UnaryOp):
        return neutral(node.operand, function, depth)
    if isinstance(node, ast.Call):
        return callee(node) in ("float", "zeros", "zeros_like", "full")
    if isinstance(node, ast.Name) and depth < 3:
        values = assigned(function, node.id)
        return len(values) == 1 and neutral(values[0], function, depth + 1)
    return False


def assigned(function: ast.FunctionDef, name: str) -> list[ast.expr]:
    """Every value assigned to `name` in the kernel."""
    return [
        n.value
        for n in ast.walk(function)
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
    ]


def _conjuncts(node: ast.expr, wanted: bool, function: ast.FunctionDef, depth: int) -> Iterator[Visible]:
    if depth > 6:
        return
    if isinstance(node, ast.Subscript):
        yield from _conjuncts(node.value, wanted, function, depth + 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd if wanted else ast.BitOr):
        yield from _conjuncts(node.left, wanted, function, depth + 1)
        yield from _conjuncts(node.right, wanted, function, depth + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield from _conjuncts(node.operand, not wanted, function, depth + 1)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in NEGATED:
        op = type(node.ops[0]) if wanted else NEGATED[type(node.ops[0])]
        yield Visible(left=ast.unparse(node.left), op=op.__name__, right=ast.unparse(node.comparators[0]), line=node.lineno)
    elif isinstance(node, ast.Name):
        values = assigned(function, node.id)
        if len(values) == 1:
            yield from _conjuncts(values[0], wanted, function, depth + 1)


def linear(node: ast.expr | None, sign: int, function: ast.FunctionDef, loop: str, depth: int = 0) -> list[Term] | None:
    """The expression as a sum of signed terms, with local names opened as far as a `tl.arange` or the loop variable hides in them."""
    if node is None or depth > 12:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        left = linear(node.left, sign, function, loop, depth + 1)
        right = linear(node.right, sign if isinstance(node.op, ast.Add) else -sign, function, loop, depth + 1)
        return left + right if left is not None and right is not None else None
    if isinstance(node, ast.Subscript):
        return linear(node.value, sign, function, loop, depth + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return linear(node.operand, -sign, function, loop, depth + 1)
    if callee(node) in ("multiple_of", "max_contiguous") and isinstance(node, ast.Call):
        return linear(node.args[0], sign, function, loop, depth + 1)
    if callee(node) == "arange" and isinstance(node, ast.Call) and len(node.args) == 2:
        first = node.args[0]
        if isinstance(first, ast.Constant) and first.value == 0:
            return [Term(text=ast.unparse(node), sign=sign, kind="range", size=ast.unparse(node.args[1]))]
        return None
    if isinstance(node, ast.Name):
        if node.id == loop:
            return [Term(text=loop, sign=sign, kind="loop")]
        values = assigned(function, node.id)
        if len(values) == 1 and hides(values[0], function, loop):
            return linear(values[0], sign, function, loop, depth + 1)
        return [Term(text=node.id, sign=sign)] if len(values) <= 1 else None
    if hides(node, function, loop):
        return None
    return [Term(text=ast.unparse(node), sign=sign)]


def hides(node: ast.expr, function: ast.FunctionDef, loop: str, depth: int = 0) -> bool:
    """Whether an expression is a tile of positions or depends on the loop variable, through names."""
    if depth > 8:
        return True
    if any(callee(n) in ("arange", "load") for n in ast.walk(node)) or loop in names_read(node):
        return True
    return any(hides(v, function, loop, depth + 1) for name in names_read(node) for v in assigned(function, name)[:1] if name != loop)


def visible_form(condition: Visible, function: ast.FunctionDef, loop: str) -> tuple[list[Term], bool] | None:
    """The condition as `sum(terms) >= 0` (or `> 0`: second value True); None when it is not linear in the loop variable."""
    flip = condition.op in ("Lt", "LtE")
    left = linear(parse(condition.left), -1 if flip else 1, function, loop)
    right = linear(parse(condition.right), 1 if flip else -1, function, loop)
    if left is None or right is None:
        return None
    terms = left + right
    if sum(t.kind == "loop" for t in terms) != 1:
        return None
    return terms, condition.op in ("Lt", "Gt")


def tightened(condition: Visible, function: ast.FunctionDef, loop: Loop) -> tuple[str, str] | None:
    """("stop", expression) or ("start", expression): the first position after, or the first of, those that the condition lets through."""
    form = visible_form(condition, function, loop.target)
    if form is None:
        return None
    terms, strict = form
    slope = next(t.sign for t in terms if t.kind == "loop")
    constant = 0
    parts: list[tuple[int, str]] = []
    for term in terms:
        if term.kind == "loop":
            continue
        # Some lane of the tile reaches the largest value of the sum: the last one of a positive range, the first one of a negative one.
        if term.kind == "range" and term.sign > 0:
            parts.append((1, term.size))
            constant -= 1
        elif term.kind == "atom" and term.text.lstrip("-").isdigit():
            constant += term.sign * int(term.text)
        elif term.kind == "atom":
            parts.append((term.sign, term.text))
    if slope < 0:  # n <= sum (or <): stop at sum + 1
        return "stop", _sum(parts, constant + (0 if strict else 1))
    # n >= -sum (or >)
    return "start", _sum([(-s, t) for s, t in parts], -constant + (1 if strict else 0))


def _sum(parts: list[tuple[int, str]], constant: int) -> str:
    ordered = sorted(parts, key=lambda p: -p[0])
    text = ""
    for sign, part in ordered:
        simple = isinstance(parse(part), ast.Name | ast.Constant | ast.Call | ast.Attribute) or (
            isinstance(node := parse(part), ast.BinOp) and isinstance(node.op, ast.Mult)
        )
        shown = part if simple else f"({part})"
        text += (f" {'+' if sign > 0 else '-'} {shown}") if text else (shown if sign > 0 else f"-{shown}")
    if constant or not text:
        text += f" {'+' if constant > 0 else '-'} {abs(constant)}" if text else str(constant)
    return text


def dead_share(view: View, launch: Launch, facts: KernelFacts, function: ast.FunctionDef, loop: Loop, condition: Visible) -> float | None:
    """Share of the loop's iterations, over the grid, whose whole tile the condition discards; None when it cannot be computed."""
    node = loop_node(function, loop.line)
    left, right = parse(condition.left), parse(condition.right)
    if node is None or left is None or right is None:
        return None
    dead = total = 0
    for program in programs(launch):
        known = known_bounds(launch, program)
        ends = [bounds(parse(t), known, facts) for t in (loop.start, loop.stop, loop.step)]
        if any(e is None or e[0] != e[1] for e in ends):
            return None
        start, stop, step = (int(e[0]) for e in ends if e is not None)
        if step <= 0:
            return None
        count = max(0, -(-(stop - start) // step))
        for k in range(0, count, max(1, count // SAMPLES)):
            position = float(start + k * step)
            here = {**known, loop.target: (position, position)}
            a, b = bounds(left, here, facts), bounds(right, here, facts)
            if a is None or b is None:
                return None
            total += 1
            dead += _never(a, condition.op, b)
    return dead / total if total else None


def _never(a: tuple[float, float], op: str, b: tuple[float, float]) -> bool:
    return {"Lt": a[0] >= b[1], "LtE": a[0] > b[1], "Gt": a[1] <= b[0], "GtE": a[1] < b[0]}[op]


def programs(launch: Launch, most: int = 16) -> Iterator[tuple[int, int, int]]:
    """Evenly spread programs of the grid, at most `most` along the first axis and a few along the others."""

    def spread(extent: int, count: int) -> list[int]:
        return sorted({int((k + 0.5) * extent / count) for k in range(min(count, extent))} | {extent - 1})

    for x in spread(launch.grid[0], most):
        for y in spread(launch.grid[1], most if launch.grid[0] < 4 else 3):
            for z in spread(launch.grid[2], 2):
                yield x, y, z


def lane_share(view: View, launch: Launch, facts: KernelFacts, condition: Visible) -> float | None:
    """Share of elements, over the grid, that an elementwise condition discards, by evaluating it at spread positions."""
    left, right = definition(condition.left), definition(condition.right)
    if left is None or right is None:
        return None
    outside = total = 0
    state = 12345

    def drawn() -> float:
        # Evenly spaced programs would meet the same column of every row.
        nonlocal state
        state = (state * 1103515245 + 12345) % 2**31
        return state / 2**31

    for _ in range(512):
        x, y, z = (int(drawn() * extent) for extent in launch.grid)
        known = known_bounds(launch, (x, y, z))
        point = Fraction(drawn())
        a, b = point.value(left, known, facts), point.value(right, known, facts)
        if a is None or b is None:
            return None
        total += 1
        outside += not {"Lt": a < b, "LtE": a <= b, "Gt": a > b, "GtE": a >= b}[condition.op]
    return outside / total if total else None


class Fraction:
    """Evaluates an index expression at one lane: the given fraction of every `tl.arange`."""

    def __init__(self, at: float) -> None:
        self.at = at

    def value(self, node: ast.expr, known: dict[str, tuple[float, float]], facts: KernelFacts) -> float | None:
        """The expression's value there; None when a part of it is unknown."""
        replaced = _AtLane(self.at, known, facts).visit(ast.parse(_opened(node, facts), mode="eval")).body
        found = bounds(replaced, known, facts)
        return found[0] if found and found[0] == found[1] else None


def _opened(node: ast.expr, facts: KernelFacts, depth: int = 0) -> str:
    """The expression's text with the names that stand for tiles replaced by their definitions."""

    class Open(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            symbol = facts.symbol(node.id)
            inner = definition(symbol.text) if symbol and symbol.ranges and not symbol.loaded and depth < 10 else None
            return ast.parse(_opened(inner, facts, depth + 1), mode="eval").body if inner is not None else node

    return ast.unparse(Open().visit(ast.parse(ast.unparse(node), mode="eval")))


class _AtLane(ast.NodeTransformer):
    def __init__(self, at: float, known: dict[str, tuple[float, float]], facts: KernelFacts) -> None:
        self.at, self.known, self.facts = at, known, facts

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if callee(node) != "arange":
            return self.generic_visit(node)  # type: ignore[return-value]
        found = bounds(node, self.known, self.facts)
        return ast.Constant(int(found[0] + self.at * (found[1] - found[0]))) if found else node

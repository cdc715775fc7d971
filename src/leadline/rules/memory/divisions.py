"""Integer divisions of tiles: which ones a kernel makes per element, what they cost, and the algebra to write them away."""

import ast
import math

from leadline.model import KernelFacts, Launch, Operation
from leadline.rules.base import View
from leadline.rules.editing import EditError, SourceFile
from leadline.rules.memory.argument_facts import values_of
from leadline.rules.memory.dead_code import unused_names, without_unused
from leadline.rules.memory.index_algebra import Algebra, Unsupported, never_negative
from leadline.rules.memory.instruction_cost import CONSTANT_DIVISION, RUNTIME_DIVISION, WIDE_CONSTANT_DIVISION, WIDE_DIVISION, expression


def tile_divisions(facts: KernelFacts) -> list[Operation]:
    """`//` and `%` on the largest tiles of the kernel, one per pair of operands (a quotient and its remainder share the work)."""
    rank = max((a.rank for a in facts.accesses), default=1)
    found: dict[tuple[str, str], Operation] = {}
    for operation in facts.of_kind("floordiv", "mod"):
        if not operation.tile or len(operation.operands) != 2 or operation.detail.get("left_tile") == "false":
            continue
        operand = expression(operation.operands[0])
        ranks = [
            s.rank for n in (ast.walk(operand) if operand else ()) if isinstance(n, ast.Name) and (s := facts.symbol(n.id)) is not None
        ]
        if rank >= 2 and ranks and max(ranks) < rank:
            continue  # rows or columns of a 2-D tile: a hundredth of its elements
        found.setdefault((operation.operands[0], operation.operands[1]), operation)
    return list(found.values())


def is_wide(operation: Operation, launch: Launch, facts: KernelFacts) -> bool:
    """Whether a division is of 64-bit integers: an operand was cast to them or is passed as one."""
    return any(_is_wide(expression(text), launch, facts) for text in operation.operands)


def _is_wide(node: ast.AST | None, launch: Launch, facts: KernelFacts, depth: int = 0) -> bool:
    if node is None or depth > 20:
        return False
    if isinstance(node, ast.Call):
        text = ast.unparse(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cast") and "int" in text.rsplit("(", 1)[-1]:
            return "int64" in text.rsplit("(", 1)[-1]
    if isinstance(node, ast.Name):
        argument = launch.argument(node.id)
        if argument is not None:
            return argument.type == "i64" and not argument.constexpr
        symbol = facts.symbol(node.id)
        return symbol is not None and _is_wide(expression(symbol.text.split("=", 1)[-1]), launch, facts, depth + 1)
    return any(_is_wide(child, launch, facts, depth + 1) for child in ast.iter_child_nodes(node))


def division_cost(operation: Operation, launch: Launch, facts: KernelFacts | None = None) -> float:
    """Instructions per element of one division: by a power of two 1.5, by another constant 5.5, by a runtime value 11; of 64-bit
    integers (told by `facts`) 3, 22 and 26: the compiler tests for operands that fit 32 bits and divides those as such. A divisor known
    to be a multiple of 16 is divided by once per vector, and then the width hardly matters."""
    right = operation.operands[1]
    if facts is not None and is_wide(operation, launch, facts):
        narrow = division_cost(operation, launch)
        if narrow == RUNTIME_DIVISION:
            argument = launch.argument(right)
            return RUNTIME_DIVISION if argument is not None and argument.divisible >= 16 else WIDE_DIVISION
        return 3.0 if narrow == 1.5 else WIDE_CONSTANT_DIVISION
    if operation.detail.get("right_constexpr") == "true":
        value = literal(right, launch)
        return 1.5 if value is not None and value > 0 and value & (value - 1) == 0 else CONSTANT_DIVISION
    return RUNTIME_DIVISION


def literal(text: str, launch: Launch) -> int | None:
    """The value of a constant or constexpr divisor in this launch, when it is a plain product of those."""
    tree = expression(text)
    match tree:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            argument = launch.argument(name)
            return argument.value if argument is not None and isinstance(argument.value, int) else None
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            a, b = literal(ast.unparse(left), launch), literal(ast.unparse(right), launch)
            return a * b if a is not None and b is not None else None
        case _:
            return None


def definitions(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Names assigned exactly once in the kernel, by a plain assignment -> the right side."""
    count: dict[str, int] = {}
    found: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            count[node.id] = count.get(node.id, 0) + 1
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return {name: value for name, value in found.items() if count[name] == 1}


def dividing(node: ast.AST, defined: dict[str, ast.expr], depth: int = 0) -> bool:
    """Whether an expression divides, itself or through the names it uses."""
    if depth > 20:  # a name that is defined through itself
        return False
    return any(
        isinstance(n, ast.FloorDiv | ast.Mod)
        or (isinstance(n, ast.Name) and n.id in defined and dividing(defined[n.id], defined, depth + 1))
        for n in ast.walk(node)
    )


def arithmetic(node: ast.AST) -> list[ast.expr]:
    """The largest integer-arithmetic expressions below a node, outermost first."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Mod):
        return [node]
    found: list[ast.expr] = []
    for child in ast.iter_child_nodes(node):
        found += arithmetic(child)
    return found


def cost(node: ast.AST, defined: dict[str, ast.expr], runtime: set[str]) -> float:
    """Instructions per element of an expression, names that divide expanded; each distinct quotient counts once."""
    pairs: dict[str, float] = {}
    operations = 0

    def walk(part: ast.AST) -> None:
        nonlocal operations
        for n in ast.walk(part):
            if isinstance(n, ast.Name) and n.id in defined and dividing(defined[n.id], defined):
                walk(defined[n.id])
            if isinstance(n, ast.BinOp):
                if isinstance(n.op, ast.FloorDiv | ast.Mod):
                    names = {m.id for m in ast.walk(n.right) if isinstance(m, ast.Name)}
                    power = (
                        isinstance(n.right, ast.Constant) and isinstance(n.right.value, int) and n.right.value & (n.right.value - 1) == 0
                    )
                    left_names = {m.id for m in ast.walk(n.left) if isinstance(m, ast.Name)}
                    if not left_names - runtime and not any(isinstance(m, ast.Call) for m in ast.walk(n.left)):
                        continue  # of parameters only: done once
                    pairs[ast.unparse(n.left) + "/" + ast.unparse(n.right)] = (
                        1.0 if power else RUNTIME_DIVISION if names & runtime else CONSTANT_DIVISION
                    )
                else:
                    operations += 1

    walk(node)
    return sum(pairs.values()) + 0.5 * operations


def simplified(view: View, launch: Launch, facts: KernelFacts) -> tuple[str, str] | None:
    """(file, precondition): the kernel with its index expressions simplified by exact identities; None when nothing gets cheaper."""
    if launch.kernel_file != view.source.path:
        return None
    text = view.text(view.source.path)
    file = SourceFile(text)
    try:
        node = file.function(launch.kernel)
    except EditError:
        return None
    defined = definitions(node)
    pointers = tuple(a.name for a in launch.arguments if a.tensor is not None)
    runtime = {p.name for p in facts.parameters if not p.constexpr} - set(pointers)
    parameters = {p.name for p in facts.parameters}
    split, why = known_factors(view, launch, facts)
    expanded = {n: v for n, v in defined.items() if dividing(v, defined)}
    conditions: list[str] = []
    changed = False
    for statement in (s for s in ast.walk(node) if isinstance(s, ast.Assign | ast.AugAssign | ast.Expr)):
        for part in arithmetic(statement.value):
            if not dividing(part, defined) or not _non_negative(part, defined):
                continue
            for factors in ({}, split):
                algebra = Algebra(expanded, factors)
                try:
                    made = algebra.text(algebra.read(part), pointers)
                except Unsupported:
                    continue
                new = ast.parse(made, mode="eval").body
                if cost(new, defined, runtime | parameters) + 0.75 < cost(part, defined, runtime | parameters):
                    file.replace_node(part, _plain(made, part, file))
                    conditions += [
                        why[n] for n in factors if any(isinstance(m, ast.Name) and m.id == n for m in ast.walk(part)) or n in why
                    ]
                    changed = True
                    break
    if not changed:
        return None
    try:
        made_text = without_unused(file.apply(), unused_names(text))
    except EditError:
        return None
    return made_text, "; ".join(dict.fromkeys(["no index is negative", *conditions]))


def known_factors(view: View, launch: Launch, facts: KernelFacts) -> tuple[dict[str, tuple[int, str]], dict[str, str]]:
    """Parameters proved to be multiples of a small constant, because every call site passes a product with that constant."""
    split: dict[str, tuple[int, str]] = {}
    why: dict[str, str] = {}
    wrapper = view.source.wrapper
    for parameter in facts.parameters:
        texts = [s.arguments.get(parameter.name, "") for s in (wrapper.launches if wrapper else ()) if s.kernel == launch.kernel]
        if not texts or parameter.name in {a.name for a in launch.arguments if a.tensor is not None}:
            continue
        factor = math.gcd(*(constant_factor(t, wrapper.assignments if wrapper else {}) for t in texts))
        values = values_of(view, launch.kernel, parameter.name)
        if factor > 1 and all(v % factor == 0 for v in values):
            split[parameter.name] = (factor, f"{parameter.name}<{factor}>")
            why[parameter.name] = f"{parameter.name} is passed as `{texts[0]}`, a multiple of {factor}"
    return split, why


def constant_factor(text: str, assignments: dict[str, str], depth: int = 0) -> int:
    """A constant that surely divides the value of a host expression: the product of the literal factors."""
    tree = expression(text)
    match tree:
        case ast.Constant(value=int(value)) if value > 0:
            return value
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return constant_factor(ast.unparse(left), assignments, depth) * constant_factor(ast.unparse(right), assignments, depth)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return math.gcd(constant_factor(ast.unparse(left), assignments, depth), constant_factor(ast.unparse(right), assignments, depth))
        case ast.Name(id=name) if name in assignments and depth < 5:
            return constant_factor(assignments[name], {k: v for k, v in assignments.items() if k != name}, depth + 1)
        case _:
            return 1


def _non_negative(part: ast.expr, defined: dict[str, ast.expr]) -> bool:
    """Whether every dividend below (names expanded) is free of negative values, so that truncating division is floor division."""
    for n in ast.walk(part):
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.FloorDiv | ast.Mod) and not never_negative(n.left, defined):
            return False
        name = n.id if isinstance(n, ast.Name) else ""
        expanded = name in defined and dividing(defined[name], defined)
        if expanded and not _non_negative(defined[name], {k: v for k, v in defined.items() if k != name}):
            return False
    return True


def _plain(made: str, old: ast.expr, file: SourceFile) -> str:
    """The text without needless outer brackets, bracketed when the old expression stood inside a larger one."""
    tree = ast.parse(made, mode="eval").body
    text = ast.unparse(tree)
    start, end = file.layout.span(old)
    inside = file.text[start - 1] == "(" and file.text[end] == ")"
    after = file.text[end : end + 1]
    return f"({text})" if isinstance(tree, ast.BinOp) and not inside and after in (".", "[") else text

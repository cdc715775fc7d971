"""Dataflow on the statements of a kernel: what they read and write, what depends on what, what may move."""

import ast
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

# Calls with an effect on memory or on other programs; loads count too, since a store may not move across them.
WRITES_MEMORY = ("store", "atomic_", "debug_barrier", "device_print", "device_assert", "inline_asm", "scatter", "assume", "async_")
READS_MEMORY = ("load", "gather", "atomic_")
PURE_MODULES = ("tl", "triton", "libdevice", "math", "tldevice")
PURE_BUILTINS = {"min", "max", "range", "abs", "int", "float", "len", "bool"}


@dataclass(frozen=True)
class Statement:
    """One statement of a block. `stores`: it may write memory or do something unknown; `loads`: it reads memory."""

    node: ast.stmt
    reads: frozenset[str]
    writes: frozenset[str]
    loads: bool
    stores: bool

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def end_line(self) -> int:
        return self.node.end_lineno or self.node.lineno


def names_read(node: ast.AST) -> frozenset[str]:
    """Names whose value a statement or expression reads (an augmented assignment reads its target)."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    found |= {n.target.id for n in ast.walk(node) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    return frozenset(found)


def names_written(node: ast.AST) -> frozenset[str]:
    """Names a statement assigns, loop variables included."""
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)))


def _call_name(call: ast.Call) -> tuple[str, str]:
    """(module or "", function) of a call; methods have the module "."."""
    if isinstance(call.func, ast.Name):
        return "", call.func.id
    if isinstance(call.func, ast.Attribute):
        root = call.func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        return (root.id if isinstance(root, ast.Name) and root.id in PURE_MODULES else "."), call.func.attr
    return "", ""


def statements(body: Sequence[ast.stmt]) -> tuple[Statement, ...]:
    """The statements of a block, in order, each with everything nested in it."""
    made: list[Statement] = []
    for node in body:
        loads = stores = isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Assert))
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            module, name = _call_name(call)
            unknown = not module and name not in PURE_BUILTINS
            stores = stores or unknown or name.startswith(WRITES_MEMORY)
            loads = loads or unknown or name.startswith(READS_MEMORY)
        stores = stores or any(isinstance(n, (ast.Return, ast.Break, ast.Continue)) for n in ast.walk(node))
        made.append(Statement(node, names_read(node), names_written(node), loads, stores))
    return tuple(made)


def dependents(block: Iterable[Statement], names: Iterable[str]) -> frozenset[str]:
    """`names` and every name assigned from them, transitively (in any order, as in a loop)."""
    block, found = tuple(block), set(names)
    while True:
        more = {w for s in block if s.reads & found for w in s.writes} - found
        if not more:
            return frozenset(found)
        found |= more


def sources(block: Iterable[Statement], names: Iterable[str]) -> frozenset[str]:
    """`names` and every name their values are computed from, transitively."""
    block, found = tuple(block), set(names)
    while True:
        more = {r for s in block if s.writes & found for r in s.reads} - found
        if not more:
            return frozenset(found)
        found |= more


def may_swap(first: Statement, second: Statement) -> bool:
    """Whether two neighbouring statements may change places."""
    if first.writes & (second.reads | second.writes) or second.writes & first.reads:
        return False
    return not ((first.stores and (second.loads or second.stores)) or (second.stores and first.loads))


def split(block: Iterable[Statement], names: Iterable[str]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]] | None:
    """(statements independent of `names`, dependent ones), each in order, if the first may all run before the second; else None."""
    block = tuple(block)
    tainted = dependents(block, names)
    independent: list[Statement] = []
    dependent: list[Statement] = []
    for statement in block:
        if statement.reads & tainted or statement.writes & tainted:
            dependent.append(statement)
        elif all(may_swap(earlier, statement) for earlier in dependent):
            independent.append(statement)
        else:
            return None
    return tuple(independent), tuple(dependent)


def invariant(loop: ast.For | ast.While) -> tuple[Statement, ...]:
    """Statements of a loop's body that compute the same in every iteration and may run once before it.

    Loads are included only when nothing in the loop stores. A loop that may run zero times then still computes them once.
    """
    body = statements(loop.body)
    counts: dict[str, int] = {}
    for statement in body:
        for name in statement.writes:
            counts[name] = counts.get(name, 0) + 1 + any(isinstance(s, (ast.For, ast.While, ast.If)) for s in [statement.node])
    varying = set(counts) | (set(names_written(loop.target)) if isinstance(loop, ast.For) else set[str]())
    stores = any(s.stores for s in body)
    found: list[Statement] = []
    seen: set[str] = set(names_read(loop.test)) if isinstance(loop, ast.While) else set()
    for statement in body:
        movable = not statement.stores and not (statement.loads and stores) and isinstance(statement.node, (ast.Assign, ast.AnnAssign))
        once = all(counts[w] == 1 and w not in seen for w in statement.writes)
        if movable and once and statement.writes and not statement.reads & varying:
            found.append(statement)
            varying -= statement.writes
        seen |= statement.reads
    return tuple(found)


def free_name(base: str, taken: Iterable[str]) -> str:
    """`base`, or base_2, base_3 ... : the first that is not taken."""
    taken = set(taken)
    return next(n for n in itertools.chain([base], (f"{base}_{i}" for i in itertools.count(2))) if n not in taken)


def names_in(node: ast.AST) -> frozenset[str]:
    """Every identifier below a node: names, parameters, functions, keywords and attributes."""
    found: set[str] = set()
    for n in ast.walk(node):
        for field in ("id", "arg", "name", "attr", "asname"):
            value = getattr(n, field, None)
            if isinstance(value, str):
                found.add(value.split(".")[0])
    return frozenset(found)


ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Subscript, ast.Attribute, ast.List, ast.Dict, ast.Set, ast.ListComp)


def substitute(expression: str, mapping: Mapping[str, str]) -> str:
    """`expression` with names replaced by expressions, parenthesised where needed; everything else is kept as written.

    Names bound inside (lambda parameters, comprehension variables) and keyword names stay. Raises ValueError when it does not parse.
    """
    try:
        tree = ast.parse(f"({expression}\n)", mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not an expression: {expression!r} ({error.msg})") from None
    lines = f"({expression}\n)".split("\n")
    starts = [0, *itertools.accumulate(len(line.encode()) + 1 for line in lines)]
    places: list[tuple[int, int, str]] = []

    def visit(node: ast.AST, hidden: frozenset[str], bare: bool) -> None:
        """`bare`: an expression here needs no parentheses, since commas or brackets delimit it."""
        if isinstance(node, ast.Name):
            if node.id in mapping and node.id not in hidden:
                start = starts[node.lineno - 1] + node.col_offset
                places.append((start, start + len(node.id.encode()), _closed(mapping[node.id], bare)))
            return
        if isinstance(node, ast.Lambda):
            arguments = node.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
            hidden = hidden | {a.arg for a in every if a}
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            hidden = hidden | {w for g in node.generators for w in names_written(g.target)}
        for name, value in ast.iter_fields(node):
            children = cast("list[object]", value) if isinstance(value, list) else [value]
            for child in children:
                if isinstance(child, ast.AST):
                    delimited = (
                        (isinstance(node, ast.Call) and name == "args") or isinstance(node, ast.keyword)
                        or (isinstance(node, ast.Subscript) and name == "slice") or isinstance(node, (ast.Tuple, ast.List))
                    )  # fmt: skip
                    visit(child, hidden, delimited and not isinstance(child, ast.Starred))

    visit(tree, frozenset(), True)
    data = f"({expression}\n)".encode()
    for start, end, text in sorted(places, reverse=True):
        data = data[:start] + text.encode() + data[end:]
    return data.decode()[1:-2]


def _closed(text: str, bare: bool) -> str:
    """`text` with the parentheses it needs when it takes the place of a name."""
    node = ast.parse(f"({text}\n)", mode="eval").body
    if isinstance(node, (ast.Tuple, ast.GeneratorExp, ast.NamedExpr)):
        whole = isinstance(node, ast.Tuple) and (node.lineno, node.col_offset) == (1, 1)  # it has its own parentheses
        return text if whole else f"({text})"
    return text if bare or isinstance(node, ATOMS) else f"({text})"

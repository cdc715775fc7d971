"""An address as a sum of products: which axis, range or loop variable is multiplied by what."""

import ast

from leadline.model import Record
from leadline.rules.memory.instruction_cost import expression


class Term(Record, frozen=True):
    """One summand. `axes`: program axes in it; `ranges`: it holds a `tl.arange`; `scale`: the other factors (empty: unit stride)."""

    text: str
    axes: tuple[int, ...] = ()
    ranges: bool = False
    scale: tuple[str, ...] = ()
    sign: int = 1


def stripped(node: ast.expr) -> ast.expr:
    """The expression below casts, broadcasts and hints, none of which changes an index."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in HINTS and node.args:
            node = node.args[0]
        else:
            return node


HINTS = ("multiple_of", "max_contiguous", "max_constancy", "expand_dims", "broadcast_to")


def is_call(node: ast.AST, name: str) -> bool:
    """Whether the node calls `tl.<name>` (under whatever alias of the module)."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def axes_of(node: ast.AST) -> tuple[int, ...]:
    """Program axes that the expression names."""
    found: set[int] = set()
    for call in ast.walk(node):
        if is_call(call, "program_id"):
            assert isinstance(call, ast.Call)
            value = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "axis"), None)
            if isinstance(value, ast.Constant) and isinstance(value.value, int):
                found.add(value.value)
    return tuple(sorted(found))


def has_range(node: ast.AST) -> bool:
    return any(is_call(n, "arange") for n in ast.walk(node))


def summands(node: ast.expr, sign: int = 1) -> list[tuple[ast.expr, int]]:
    """The expression flattened over + and -."""
    node = stripped(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return [*summands(node.left, sign), *summands(node.right, -sign if isinstance(node.op, ast.Sub) else sign)]
    return [(node, sign)]


def factors(node: ast.expr) -> list[ast.expr]:
    """The expression flattened over *."""
    node = stripped(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*factors(node.left), *factors(node.right)]
    return [node]


def terms(text: str | None) -> tuple[Term, ...]:
    """Summands of a source expression, products of sums distributed; empty for text that does not parse."""
    tree = expression(text)
    return tuple(_terms(tree, (), 1)) if tree is not None else ()


def _terms(node: ast.expr, scale: tuple[str, ...], sign: int) -> list[Term]:
    found: list[Term] = []
    for part, part_sign in summands(node, sign):
        pieces = factors(part)
        varying = [p for p in pieces if axes_of(p) or has_range(p)]
        others = tuple(ast.unparse(p) for p in pieces if p not in varying)
        if len(varying) == 1 and isinstance(varying[0], ast.BinOp) and isinstance(varying[0].op, ast.Add | ast.Sub):
            found.extend(_terms(varying[0], (*scale, *others), part_sign))
        else:
            found.append(
                Term(
                    text=ast.unparse(part),
                    axes=axes_of(part),
                    ranges=has_range(part),
                    scale=(*scale, *others) if varying else scale,
                    sign=part_sign,
                )
            )
    return found


def unit_axes(text: str | None) -> tuple[int, ...]:
    """Program axes whose index is added unscaled: neighbouring programs touch neighbouring elements."""
    return tuple(sorted({axis for t in terms(text) if not t.scale and not t.ranges and plain_axis(t) for axis in t.axes}))


def plain_axis(term: Term) -> bool:
    """Whether the term is a program index itself, not a function of it such as `pid % n`."""
    tree = expression(term.text)
    return tree is not None and is_call(stripped(tree), "program_id")


def strides_of_ranges(text: str | None) -> tuple[tuple[str, ...], ...]:
    """For every summand that holds an arange, the factors that scale it."""
    return tuple(t.scale for t in terms(text) if t.ranges)

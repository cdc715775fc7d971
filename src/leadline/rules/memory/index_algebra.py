"""Exact simplification of integer index expressions with `//` and `%`.

An expression becomes a polynomial over atoms (names, calls, quotients). Every remainder is written as `E - N * (E // N)`; nested
quotients join (`E // N // M = E // (N * M)`), and multiples of the divisor leave a quotient (`(N * B + R) // N = B + R // N`). These are
identities of floor division; Triton's division truncates, so every dividend must be known not to be negative, which is checked.
"""

import ast

Monomial = tuple[str, ...]
Poly = dict[Monomial, int]


class Unsupported(Exception):
    """The expression has a part that is no integer arithmetic on plain values."""


def plus(a: Poly, b: Poly, factor: int = 1) -> Poly:
    made = dict(a)
    for monomial, c in b.items():
        made[monomial] = made.get(monomial, 0) + factor * c
    return {m: c for m, c in made.items() if c}


def times(a: Poly, b: Poly) -> Poly:
    made: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            made = plus(made, {tuple(sorted((*m, *n))): c * d})
    return made


def constant(value: int) -> Poly:
    return {(): value} if value else {}


def divided(poly: Poly, by: Poly) -> Poly | None:
    """The exact quotient by a single product, or None."""
    if len(by) != 1:
        return None
    ((monomial, coefficient),) = by.items()
    made: Poly = {}
    for m, c in poly.items():
        rest = _taken(m, monomial)
        if rest is None or c % coefficient:
            return None
        made[rest] = c // coefficient
    return made


def _taken(monomial: Monomial, factor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


class Algebra:
    """Polynomials of one kernel. `definitions` are names to expand; `split` maps a name to (k, atom) when it is known to be k * atom;
    `axes` is (tile, N, row, column) when the tile is known to be N * row + column with 0 <= column < N."""

    def __init__(
        self,
        definitions: dict[str, ast.expr],
        split: dict[str, tuple[int, str]] | None = None,
        axes: tuple[str, Poly, str, str] | None = None,
    ) -> None:
        self.definitions, self.split, self.axes = definitions, split or {}, axes
        self.quotients: dict[str, tuple[Poly, Poly]] = {}

    def read(self, node: ast.expr) -> Poly:
        """The expression as a polynomial. Raises Unsupported."""
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return constant(value)
            case ast.Name(id=name):
                if name in self.definitions:
                    return self.read(self.definitions[name])
                if self.axes is not None and name == self.axes[0]:
                    return plus(times(self.axes[1], {(self.axes[2],): 1}), {(self.axes[3],): 1})
                if name in self.split:
                    k, atom = self.split[name]
                    return {(atom,): k}
                return {(name,): 1}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return plus({}, self.read(operand), -1)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return plus(self.read(left), self.read(right))
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return plus(self.read(left), self.read(right), -1)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return times(self.read(left), self.read(right))
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return self.quotient(self.read(left), self.read(right))
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                value, by = self.read(left), self.read(right)
                return plus(value, times(by, self.quotient(value, by)), -1)
            case _:
                pass
        if any(isinstance(n, ast.FloorDiv | ast.Mod) for n in ast.walk(node)) or any(
            isinstance(n, ast.Name) and n.id in self.definitions for n in ast.walk(node)
        ):
            raise Unsupported(ast.unparse(node))
        return {(ast.unparse(node),): 1}

    def quotient(self, value: Poly, by: Poly) -> Poly:
        """`value // by`, simplified."""
        if by == constant(1):
            return value
        if len(by) != 1 or next(iter(by.values())) <= 0:
            raise Unsupported("divisor is a sum")
        if self.axes is not None:
            _, width, row, column = self.axes
            flat = plus(times(width, {(row,): 1}), {(column,): 1})
            if value == flat and (planes := divided(by, width)) is not None:
                return self.quotient({(row,): 1}, planes)
        whole: Poly = {}
        rest: Poly = {}
        for monomial, c in value.items():
            exact = divided({monomial: c}, by)
            if exact is None:
                rest[monomial] = c
            else:
                whole = plus(whole, exact)
        if not rest:
            return whole
        if list(rest) == [()]:
            return plus(whole, constant(rest[()] // by[()])) if list(by) == [()] else plus(whole, self._atom(rest, by))
        if len(rest) == 1:
            ((monomial, c),) = rest.items()
            if c == 1 and len(monomial) == 1 and monomial[0] in self.quotients:
                inner, inner_by = self.quotients[monomial[0]]
                return plus(whole, self._atom(inner, times(inner_by, by)))
        return plus(whole, self._atom(rest, by))

    def _atom(self, value: Poly, by: Poly) -> Poly:
        key = f"<{sorted(value.items())}//{sorted(by.items())}>"
        self.quotients[key] = (value, by)
        return {(key,): 1}

    # -- back to text -------------------------------------------------------------------------------------------------

    def text(self, poly: Poly, first: tuple[str, ...] = ()) -> str:
        """Source text of a polynomial; monomials that are one of `first` (pointers) come first. Remainders are written with `%`."""
        parts = self._folded(poly)
        parts.sort(key=lambda p: (p[0] not in first, p[1] < 0))
        made = ""
        for body, c in parts:
            sign = " - " if c < 0 else " + "
            size = abs(c)
            piece = body if size == 1 and body else str(size) if not body else f"{size} * {body}"
            made += (sign if made else "-" if c < 0 else "") + piece
        return made or "0"

    def _folded(self, poly: Poly) -> list[tuple[str, int]]:
        """Summands as (text, coefficient) with `F * E - F * N * (E // N)` folded into `F * (E % N)`."""
        parts: list[tuple[str, int]] = []
        left = dict(poly)
        for atom, (value, by) in self.quotients.items():
            for monomial, c in list(left.items()):
                if atom not in monomial or monomial not in left:
                    continue
                factor = divided({_taken(monomial, (atom,)) or (): -c}, by)
                if factor is None:
                    continue
                wanted = times(factor, value)
                if all(left.get(m, 0) == n for m, n in wanted.items()):
                    left = plus(plus(left, wanted, -1), {monomial: c}, -1)
                    ((extra, size),) = factor.items()
                    body = f"({self._factor(value)} % {self._factor(by)})"
                    parts.append((" * ".join([*map(self._name, extra), body]), size))
        if self.axes is not None:  # N * row + column is the tile itself
            tile, width, row, column = self.axes
            flat = plus(times(width, {(row,): 1}), {(column,): 1})
            if all(left.get(m, 0) == c for m, c in flat.items()):
                left = plus(plus(left, flat, -1), {(tile,): 1})
        for monomial, c in left.items():
            parts.append((" * ".join(map(self._name, self._joined(monomial, c)[0])), self._joined(monomial, c)[1]))
        return parts

    def _joined(self, monomial: Monomial, c: int) -> tuple[Monomial, int]:
        """The product with `k * (name // k)` written as the name again."""
        for name, (k, atom) in self.split.items():
            if atom in monomial and c % k == 0:
                return self._joined(tuple(sorted((*(_taken(monomial, (atom,)) or ()), name))), c // k)
        return monomial, c

    def _name(self, atom: str) -> str:
        if atom in self.quotients:
            value, by = self.quotients[atom]
            return f"({self._factor(value)} // {self._factor(by)})"
        for name, (k, split) in self.split.items():
            if split == atom:
                return f"({name} // {k})"
        tree = ast.parse(atom, mode="eval").body
        return f"({atom})" if isinstance(tree, ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp | ast.IfExp) else atom

    def _factor(self, poly: Poly) -> str:
        text = self.text(poly)
        tree = ast.parse(text, mode="eval").body
        return f"({text})" if isinstance(tree, ast.BinOp | ast.UnaryOp) else text


def never_negative(node: ast.expr, definitions: dict[str, ast.expr]) -> bool:
    """Whether the value cannot be negative: program indices, ranges, sizes and constants under +, *, // and %. Names without a
    definition are parameters (sizes) and count as not negative; loads and differences do not."""
    match node:
        case ast.Constant(value=int(value)):
            return value >= 0
        case ast.Name(id=name):
            return name not in definitions or never_negative(definitions[name], {k: v for k, v in definitions.items() if k != name})
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right=right):
            return never_negative(left, definitions) and never_negative(right, definitions)
        case ast.Call(func=ast.Attribute(attr="program_id" | "num_programs" | "cdiv")):
            return True
        case ast.Call(func=ast.Attribute(attr="arange"), args=[first, *_]):
            return never_negative(first, definitions)
        case ast.Call(func=ast.Attribute(attr="to", value=value)):
            return never_negative(value, definitions)
        case ast.Subscript(value=value):
            return never_negative(value, definitions)
        case _:
            return False

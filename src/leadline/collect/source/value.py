"""What is known of a value in a kernel: what it depends on, its rank, its expanded expression."""

import ast
from dataclasses import dataclass, replace

# An expression that grew beyond this many nodes is no longer expanded: its name stays.
NODE_LIMIT = 300

NO_INTS: frozenset[int] = frozenset()
NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Value:
    """Dependence sets as in `model.source.Symbol`; `bases` are the pointer parameters it may point into.

    `node` is the expression with local names replaced (None: keep the name), `size` its node count, `items` the members of a tuple.
    """

    axes: frozenset[int] = NO_INTS
    ranges: frozenset[int] = NO_INTS
    loops: frozenset[int] = NO_INTS
    params: frozenset[str] = NO_NAMES
    loaded: bool = False
    rank: int = 0
    bases: tuple[str, ...] = ()
    constexpr: bool = False
    divmod: bool = False
    node: ast.expr | None = None
    size: int = 1
    items: tuple["Value", ...] = ()

    @property
    def tile(self) -> bool:
        return self.rank > 0 or (self.rank < 0 and bool(self.ranges))

    @property
    def known(self) -> "Value":
        """The same without what may differ between two passes over a loop though nothing was learnt."""
        return replace(self, node=None, size=1, items=(), constexpr=False)


def broadcast_rank(*ranks: int) -> int:
    """Rank of an elementwise result; unknown (-1) only when no operand is known to be a tile."""
    highest = max(ranks, default=0)
    return -1 if highest <= 0 and -1 in ranks else highest


def combine(*values: Value, rank: int | None = None, constexpr: bool | None = None) -> Value:
    """A value that depends on all `values`, elementwise unless `rank` is given. No base, no node."""
    return Value(
        axes=NO_INTS.union(*(v.axes for v in values)),
        ranges=NO_INTS.union(*(v.ranges for v in values)),
        loops=NO_INTS.union(*(v.loops for v in values)),
        params=NO_NAMES.union(*(v.params for v in values)),
        loaded=any(v.loaded for v in values),
        rank=broadcast_rank(*(v.rank for v in values)) if rank is None else rank,
        constexpr=all(v.constexpr for v in values) if constexpr is None else constexpr,
        divmod=any(v.divmod for v in values),
    )


def merge(first: Value, second: Value) -> Value:
    """One or the other (branches joining): everything either depends on; the expression only if both have the same."""
    if first is second:
        return first
    union = combine(first, second)
    bases = first.bases + tuple(b for b in second.bases if b not in first.bases)
    same = first.node is not None and first.node is second.node
    rank = max(first.rank, second.rank)
    items = tuple(merge(a, b) for a, b in zip(first.items, second.items, strict=False))
    return replace(union, rank=rank, bases=bases, node=first.node if same else None, size=first.size if same else 1, items=items)

"""Narrow accesses: which arguments keep the compiler from the width that the sampled addresses allow."""

import ast

from leadline.model import Access, AccessSample, Argument, KernelFacts, Launch, Record
from leadline.rules.base import View
from leadline.rules.memory.index_terms import has_range, is_call, terms
from leadline.rules.memory.instruction_cost import access_us, expression, gain, names_in, possible_width, straight_issue_us, width_at


class Narrow(Record, frozen=True):
    """One access that could be wider. Widths in bytes per thread; `width` is compiled, or expected from the arguments before that."""

    access: Access
    sample: AccessSample
    width: int
    possible: int
    compiled: bool
    address: tuple[str, ...] = ()  # arguments of the address without a recorded divisibility
    mask: tuple[str, ...] = ()  # the same of the mask
    divisors: tuple[str, ...] = ()  # arguments that tiles are divided by


def vague(argument: Argument | None) -> bool:
    """Whether the JIT knows nothing about the argument's divisibility: an integer or pointer not divisible by 16, and not folded."""
    if argument is None or argument.constexpr or argument.folded or argument.divisible >= 16:
        return False
    return argument.tensor is not None or (isinstance(argument.value, int) and not isinstance(argument.value, bool))


def narrow_accesses(view: View, launch: Launch) -> list[Narrow]:
    """Accesses of the launch whose sampled addresses allow at least twice the width they have (or are expected to have)."""
    facts = view.kernel(launch)
    if facts is None:
        return []
    found: list[Narrow] = []
    for access in facts.accesses:
        sample = view.access(launch.index, access.line, access.kind)
        if sample is None or sample.indirect or sample.lanes < 64 or access.kind not in ("load", "store"):
            continue
        possible = possible_width(sample)
        if possible < 2 * sample.itemsize:
            continue
        address, mask, divisors = vague_arguments(facts, launch, access)
        compiled = width_at(view, launch, access.line, access.kind)
        if compiled is not None:
            width = compiled
        else:
            width = sample.itemsize if address or mask or divisors else possible
        if possible >= 2 * width and (address or mask or divisors):
            found.append(
                Narrow(
                    access=access,
                    sample=sample,
                    width=width,
                    possible=possible,
                    compiled=compiled is not None,
                    address=address,
                    mask=mask,
                    divisors=divisors,
                )
            )
    return found


def vague_arguments(facts: KernelFacts, launch: Launch, access: Access) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Arguments of unknown divisibility in the address, in the mask, and among divisors of tiles in the address."""
    text = access.expanded or access.pointer
    in_address = names_in(text)
    if access.base:
        in_address = in_address | {access.base}
    in_mask = mask_names(text, access.mask_expanded or access.mask)
    divisors = names_in(" + ".join(tile_divisors(text)))
    order = [p.name for p in facts.parameters if vague(launch.argument(p.name))]
    scaled: set[str] = set()
    for term in terms(text):
        scaled |= names_in(term.text).union(*(names_in(s) for s in term.scale))
    address = tuple(n for n in order if n in in_address and n not in divisors and (n in scaled or n == access.base))
    return address, tuple(n for n in order if n in in_mask), tuple(n for n in order if n in divisors)


def tile_divisors(text: str | None) -> list[str]:
    """Texts of the right operands of `%` and `//` applied to tiles in an expression."""
    tree = expression(text)
    if tree is None:
        return []
    return [
        ast.unparse(n.right)
        for n in ast.walk(tree)
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod | ast.FloorDiv) and has_range(n.left)
    ]


def mask_names(address: str | None, mask: str | None) -> set[str]:
    """Names that the mask compares the contiguous axis with; a bound on the rows of a 2-D tile does not vary inside a vector."""
    tree = expression(mask)
    if tree is None:
        return set()
    fast = {r for t in terms(address) if t.ranges and not t.scale for r in ranges_in(t.text)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and (not fast or fast & ranges_in(ast.unparse(node))):
            found |= names_in(ast.unparse(node))
    return found


def ranges_in(text: str) -> set[str]:
    """Texts of the `arange` calls in an expression."""
    tree = expression(text)
    return {ast.unparse(n) for n in ast.walk(tree) if is_call(n, "arange")} if tree is not None else set()


def width_gain(view: View, launch: Launch, narrow: list[Narrow]) -> tuple[float, float]:
    """Speedup (low, high) of the launch when these accesses get the width their addresses allow."""
    sample = view.samples.get(launch.index)
    if sample is None:
        return 1.0, 1.0
    chosen = {(n.access.line, n.access.kind): n for n in narrow}
    before = after = 0.0
    for seen in sample.accesses:
        known = chosen.get((seen.line, seen.kind))
        compiled = width_at(view, launch, seen.line, seen.kind)
        width = known.width if known else compiled or possible_width(seen)
        before += access_us(seen, width, launch.programs, view.sms)
        after += access_us(seen, known.possible if known else width, launch.programs, view.sms)
    straight = straight_issue_us(view, launch)
    if straight is not None:
        # A narrow access gives every operation on its tile a layout of single elements, so nearly all of the code shrinks with it.
        widest = min((n.width / n.possible for n in narrow), default=1.0)
        before, after = max(before, straight), max(before, straight) * (1 - 0.8 * (1 - widest))
    return gain(view, launch, before, after)

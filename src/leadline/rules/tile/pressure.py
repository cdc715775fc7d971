"""Registers that the tiles of a kernel ask for, per thread: what the source says before a compiler was asked."""

import ast

from leadline.model import KernelFacts, Launch, LaunchSite
from leadline.rules.base import View
from leadline.rules.grid.work import bounds, known_bounds, parse, ranged, threads

# Registers that addresses, masks and temporaries take of what a thread may have.
USABLE = 0.8


def registers_allowed(launch: Launch) -> int:
    """Registers that a thread may have: 255, or what a full register file leaves it, or maxnreg."""
    allowed = min(255, 65536 // threads(launch))
    return min(allowed, launch.option("maxnreg", 255) or 255)


def shape_sizes(view: View, launch: Launch, facts: KernelFacts) -> list[tuple[int, int, str]]:
    """(elements, line, name) of the tiles that are held: loaded ones, those made by tl.zeros and tl.full, results of dots."""
    found: dict[str, tuple[int, int, str]] = {}
    for access in facts.accesses:
        sampled = view.access(launch.index, access.line, "load" if access.kind == "load" else "store")
        lanes = sampled.lanes if sampled else _ranged_size(launch, facts, access.expanded or access.pointer)
        if access.kind == "load" and lanes > 1:
            found[access.target or f"{access.line}"] = (lanes, access.line, access.target or "")
    known = known_bounds(launch)
    for symbol in facts.symbols:
        for node in ast.walk(_tree(symbol.text)):
            name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if name in ("zeros", "full") and isinstance(node, ast.Call):
                shape = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "shape"), None)
                if isinstance(shape, ast.Tuple | ast.List):
                    size = 1.0
                    for extent in shape.elts:
                        ends = bounds(extent, known, facts)
                        size *= ends[0] if ends else 1.0
                    if size > 1 and symbol.name not in found:
                        found[symbol.name] = (int(size), symbol.line, symbol.name)
    for dot in facts.of_kind("dot"):
        size = _dot_size(found, dot.operands, launch, facts, view)
        if size and dot.target and dot.target not in found:
            found[dot.target] = (size, dot.line, dot.target)
    return sorted(found.values(), reverse=True)


def _tree(text: str) -> ast.AST:
    try:
        return ast.parse(text.strip())
    except (SyntaxError, ValueError):
        return ast.Constant(0)


def _ranged_size(launch: Launch, facts: KernelFacts, text: str) -> int:
    """Elements of a pointer tile: the product of its distinct arange sizes (by subscript position)."""
    sizes: dict[str, int] = {}
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "arange":
            sizes[ast.unparse(node)] = ranged(launch, ast.unparse(node), facts)
    total = 1
    for size in sizes.values():
        total *= size
    return total


def _dot_size(found: dict[str, tuple[int, int, str]], operands: tuple[str, ...], launch: Launch, facts: KernelFacts, view: View) -> int:
    """Elements of `tl.dot(a, b)` from the sizes of its operands and their common extent, when both are loaded tiles; 0 otherwise."""
    named = [found.get(o) for o in operands[:2]]
    if len(named) < 2 or named[0] is None or named[1] is None:
        return 0
    rows, columns = named[0][0], named[1][0]
    extents = {ranged(launch, o.text, facts) for o in facts.of_kind("arange")} - {1}
    for inner in sorted(extents):
        m, n = rows / inner, columns / inner
        if m in extents and n in extents:
            return int(m * n)
    return 0


def pressure(view: View, launch: Launch, facts: KernelFacts) -> tuple[float, int, int]:
    """(registers wanted over registers usable, line of the largest tile, its elements).

    Tiles loaded inside a loop that feed a dot go through shared memory and count for nothing; all others count four bytes an element.
    """
    dots = {operand for o in facts.of_kind("dot") for operand in o.operands[:2]}
    in_loop = {a.target for a in facts.accesses if a.kind == "load" and a.loop >= 0}
    held = [(n, line, name) for n, line, name in shape_sizes(view, launch, facts) if not (name and name in dots and name in in_loop)]
    if not held:
        return 0.0, facts.line, 0
    wanted = sum(n for n, _, _ in held) / threads(launch)
    return wanted / (registers_allowed(launch) * USABLE), held[0][1], held[0][0]


def site_of(view: View, launch: Launch) -> LaunchSite | None:
    """The launch statement of the wrapper that made this launch."""
    wrapper = view.source.wrapper
    if wrapper is None:
        return None
    sites = [s for s in wrapper.launches if s.kernel == launch.kernel]
    at = [s for s in sites if s.line <= launch.call_line <= s.end_line]
    return (at or sites or [None])[0]


def constant_argument(site: LaunchSite, name: str, view: View) -> str:
    """The text that the wrapper passes for a kernel parameter, with one local name replaced by its assignment."""
    text = site.arguments.get(name, "")
    wrapper = view.source.wrapper
    if wrapper and text in wrapper.assignments:
        return wrapper.assignments[text]
    return text


def rounded_up(site: LaunchSite, name: str, view: View) -> str:
    """X, when the wrapper passes `next_power_of_2(X)` (perhaps inside max or min) for the parameter; else ""."""
    node = parse(constant_argument(site, name, view))
    for call in ast.walk(node) if node else ():
        if isinstance(call, ast.Call) and ast.unparse(call.func).rsplit(".", 1)[-1] in (
            "next_power_of_2",
            "next_pow2",
            "next_power_of_two",
        ):
            return ast.unparse(call.args[0]) if call.args else ""
    return ""

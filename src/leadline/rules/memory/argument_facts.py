"""What the compiler may be told of an integer argument: probes that grant it, and rewrites that tell it for good."""

import ast
import math

from leadline.model import Constant, Divisible, Fact, Hypothesis, Launch, Rewrite
from leadline.rules.base import View
from leadline.rules.editing import EditError, SourceFile, free_name

MOST_VALUES = 8  # compilations that a constexpr argument may cost over all traced launches


def launch_of(view: View, hypothesis: Hypothesis) -> Launch | None:
    """The launch that a hypothesis is about."""
    return next((x for x in view.launches if x.index == hypothesis.launch), None)


def argument_probe(launch: Launch, name: str, *, divisible: bool = False) -> Fact:
    """The fact to grant of an argument: divisibility of a pointer (or when asked for), the value of an integer."""
    argument = launch.argument(name)
    if divisible or (argument is not None and argument.tensor is not None):
        return Divisible(argument=name)
    return Constant(argument=name)


def values_of(view: View, kernel: str, name: str) -> set[int]:
    """Values an integer argument takes over all traced launches of a kernel."""
    traces = [view.trace, *view.others] if view.trace else []
    launches = [x for t in traces for x in t.launches if x.kernel == kernel]
    return {a.value for x in launches if (a := x.argument(name)) is not None and isinstance(a.value, int) and not isinstance(a.value, bool)}


def constexpr_rewrite(view: View, launch: Launch, names: tuple[str, ...]) -> Rewrite | None:
    """The kernel with these parameters as `tl.constexpr`; None when one is used in a way that needs a runtime value, takes many
    values, or the kernel lives in another file."""
    names = tuple(n for n in names if (a := launch.argument(n)) is not None and not a.constexpr and a.tensor is None)
    if launch.kernel_file != view.source.path or not names:
        return None
    file = SourceFile(view.text(view.source.path))
    try:
        node = file.function(launch.kernel)
        if any(not plain_use(node, n) or len(values_of(view, launch.kernel, n)) > MOST_VALUES for n in names):
            return None
        for name in names:
            file.make_constexpr(launch.kernel, name)
        made = file.apply()
    except EditError:
        return None
    listed = ", ".join(names)
    return Rewrite(
        id="",
        rule="",
        title=f"make {listed} constexpr",
        source=made,
        applicability="safe",
        precondition=f"{listed}: at most {MOST_VALUES} values over the named cases, one compilation each",
    )


def unit_rewrite(view: View, launch: Launch, names: tuple[str, ...]) -> Rewrite | None:
    """The kernel told the largest power of two (at most 16) that divides each argument, through one constexpr per argument.

    `n // UNIT * UNIT` equals `n` because UNIT divides n; the compiler reads the divisibility off the product. None when no argument has
    a useful divisor or an argument's text at a call site may not be evaluated twice.
    """
    useful = tuple(
        n
        for n in names
        if (vs := values_of(view, launch.kernel, n))
        and any(math.gcd(v, 16) > 1 for v in vs)
        and (a := launch.argument(n)) is not None
        and not a.constexpr
    )
    if launch.kernel_file != view.source.path or not useful:
        return None
    file = SourceFile(view.text(view.source.path))
    try:
        node = file.function(launch.kernel)
        body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        sites = file.sites(launch.kernel)
        if any(not plain_use(node, n) for n in useful) or any(s.grid is None for s in sites) or not body:
            return None
        lines: list[str] = []
        for name in useful:
            unit = free_name(f"{name.upper()}_UNIT", file.names())
            passed = {s.line: file.launch_argument(s.line, name) for s in sites}
            if not all(p and pure(p) for p in passed.values()):
                return None
            file.add_parameter(
                launch.kernel, f"{unit}: {file.triton_language()}.constexpr", argument={k: f"math.gcd({v}, 16)" for k, v in passed.items()}
            )
            lines.append(f"{name} = {name} // {unit} * {unit}  # exact: the unit divides it")
        file.insert_before(body[0].lineno, "\n".join(lines))
        file.add_import("import math")
        made = file.apply()
    except EditError:
        return None
    listed = ", ".join(useful)
    return Rewrite(
        id="",
        rule="",
        title=f"pass the power-of-two divisor of {listed} as a constexpr",
        source=made,
        applicability="safe",
        precondition=f"each unit is math.gcd of the argument and 16, so it divides {listed}",
    )


def pure(text: str) -> bool:
    """Whether a host expression may be evaluated twice: names, numbers, attributes, items, arithmetic, `.stride()`-like reads."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return False
    reads = ("stride", "size", "numel", "dim", "cdiv", "next_power_of_2", "element_size", "len", "min", "max")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
            if name not in reads:
                return False
        elif not isinstance(
            node,
            ast.Expression
            | ast.Name
            | ast.Constant
            | ast.Attribute
            | ast.Subscript
            | ast.BinOp
            | ast.UnaryOp
            | ast.operator
            | ast.unaryop
            | ast.expr_context
            | ast.Slice,
        ):
            return False
    return True


def plain_use(node: ast.FunctionDef, name: str) -> bool:
    """Whether the body only reads the name as a value: no assignment to it, no attribute or method of it."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id == name and not isinstance(inner.ctx, ast.Load):
            return False
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == name:
            return False
    return True

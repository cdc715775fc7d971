"""Rewrite of GRD101: an accumulation loop is split over a new grid axis, and a second kernel combines the partial results."""

import ast
import textwrap

from leadline.model import KernelFacts, Launch
from leadline.rules.base import View
from leadline.rules.editing.dataflow import names_read, names_written
from leadline.rules.grid.body import after_docstring, callee
from leadline.rules.grid.launch_text import Text, bracketed, grid_of, kernel_in, launch_at, on_host, opened, passed
from leadline.rules.grid.loop_state import State, states_of

AXES = ("tl.program_id(0)", "tl.program_id(1)", "tl.program_id(2)")


def split(view: View, launch: Launch, facts: KernelFacts, line: int, most: int, wanted: int) -> str | None:
    """The file with two more kernels: one runs a share of the loop at `line` and stores what it carries, the other combines and finishes.

    The host splits until about `wanted` programs run, at most `most` ways, and launches the original kernel when one way is enough.
    None unless the loop counts through a range with stores only after it, all it carries can be combined (`loop_state`), the kernel has
    no early return, and the launch is a statement with a plain grid of at most two axes.
    """
    text = opened(view, facts.file, launch.call_file)
    node = kernel_in(text, facts) if text else None
    if text is None or node is None:
        return None
    loop = next((s for s in node.body if isinstance(s, ast.For) and s.lineno == line), None)
    call = launch_at(text, launch)
    statement = next((s for s in ast.walk(text.tree) if isinstance(s, ast.Expr) and s.value is call), None)
    if loop is None or call is None or statement is None or not _allowed(node, loop):
        return None
    states = states_of(node, loop)
    grid = grid_of(text, call)
    if not states or grid is None or not 1 <= len(grid) <= 2 or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    kept = [s for s in states if s.kind != "pointer"]
    after = node.body[node.body.index(loop) + 1 :]
    leaks = names_written(loop) - {s.name for s in kept}
    if exposed(after) & leaks or not after:
        return None
    host = _host(text, call, node, statement, grid, kept, facts, most, wanted, _range(loop, text))
    partial = _partial(text, node, loop, states, kept, len(grid))
    final = _final(text, node, loop, kept, after, len(grid))
    if host is None or partial is None:
        return None
    end = text.block([node])[1]
    text.insert(end, f"\n\n{partial}\n\n{final}")
    text.edits.append((text.starts[statement.lineno - 1], text.block([statement])[1], host))
    return text.result()


def _allowed(node: ast.FunctionDef, loop: ast.For) -> bool:
    if loop.orelse or not isinstance(loop.target, ast.Name) or callee(loop.iter) != "range":
        return False
    if any(isinstance(n, ast.Return | ast.Break | ast.Continue) for n in ast.walk(node)):
        return False
    writes = [n for n in ast.walk(loop) if callee(n) == "store" or callee(n).startswith("atomic")]
    before = node.body[: node.body.index(loop)]
    early = [n for s in before for n in ast.walk(s) if callee(n) == "store" or callee(n).startswith("atomic")]
    extents = any(callee(n) == "num_programs" for n in ast.walk(node))
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {a.arg for a in node.args.args}
    return (
        not writes
        and not early
        and not extents
        and not names & {"SPLITS", "split", "slot", "part_start", "part_stop"}
        and not node.args.kwonlyargs
    )


def exposed(statements: list[ast.stmt]) -> set[str]:
    """Names that the statements read before they define them."""
    found: set[str] = set()
    done: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.For):
            inner = exposed(statement.body) - {n.id for n in ast.walk(statement.target) if isinstance(n, ast.Name)}
            found |= (names_read(statement.iter) - {"range"} | inner) - done
        elif isinstance(statement, ast.If):
            found |= (names_read(statement.test) | exposed(statement.body) | exposed(statement.orelse)) - done
        else:
            found |= names_read(statement) - done
            done |= names_written(statement)
    return found


def _range(loop: ast.For, text: Text) -> tuple[str, str, str]:
    assert isinstance(loop.iter, ast.Call)
    given = [text.of(a) for a in loop.iter.args]
    return ("0", given[0], "1") if len(given) == 1 else (given[0], given[1], given[2] if len(given) > 2 else "1")


def _size(shape: tuple[str, ...]) -> str:
    return " * ".join(bracketed(e) for e in shape) if shape else "1"


def _place(state: State) -> str:
    """Offsets of a partial result from its slot."""
    size = f"slot * ({_size(state.shape)})" if len(state.shape) > 1 else f"slot * {_size(state.shape)}" if state.shape else "slot"
    if not state.shape:
        return f"{state.name}_parts + {size}"
    if len(state.shape) == 1:
        return f"{state.name}_parts + {size} + tl.arange(0, {state.shape[0]})"
    rows, columns = state.shape
    return f"{state.name}_parts + {size} + tl.arange(0, {rows})[:, None] * {bracketed(columns)} + tl.arange(0, {columns})[None, :]"


def _slot(axes: int, which: str) -> str:
    number = AXES[0] if axes == 1 else f"({AXES[0]} * tl.num_programs(1) + {AXES[1]})"
    return f"slot = {number}.to(tl.int64) * SPLITS + {which}"


def _signature(text: Text, node: ast.FunctionDef, name: str, kept: list[State]) -> str:
    """Decorators and `def` line with another name and the partial buffers in front of the parameters."""
    first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
    head = text.text[text.starts[first - 1] : text.block(after_docstring(node)[:1])[0]]
    head = head[: head.rindex(":") + 1] if not head.rstrip().endswith(":") else head.rstrip()
    parts = ", ".join(f"{s.name}_parts" for s in kept)
    return textwrap.dedent(head).replace(f"def {node.name}(", f"def {name}({parts}, SPLITS: tl.constexpr, ", 1)


def _lines(text: Text, statements: list[ast.stmt], after: int) -> str:
    """Text of consecutive statements with the comments between them and above the first, down to line `after`."""
    if not statements:
        return ""
    first = statements[0].lineno
    while first - 1 > after and text.lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return textwrap.dedent("".join(text.lines[first - 1 : statements[-1].end_lineno]))


def _partial(text: Text, node: ast.FunctionDef, loop: ast.For, states: list[State], kept: list[State], axes: int) -> str | None:
    start, stop, step = _range(loop, text)
    body = after_docstring(node)
    before = body[: body.index(loop)]
    share = (
        f"tl.cdiv(tl.cdiv({stop}, {step}), SPLITS)" if start == "0" else f"tl.cdiv(tl.cdiv({stop} - {bracketed(start)}, {step}), SPLITS)"
    )
    lines = [
        f"split = tl.program_id({axes})",
        f"part_start = {'' if start == '0' else bracketed(start) + ' + '}split * {share} * {bracketed(step)}",
    ]
    lines.append(f"part_stop = tl.minimum(part_start + {share} * {bracketed(step)}, {stop})")
    lines += [f"{s.name} += split * {share} * {bracketed(s.advance)}" for s in states if s.kind == "pointer"]
    assert isinstance(loop.iter, ast.Call)
    header = text.text[text.starts[loop.lineno - 1] : text.starts[loop.body[0].lineno - 1]]
    given = loop.iter.args
    first, last = text.span(given[0])[0], text.span(given[-1])[1]
    offset = text.starts[loop.lineno - 1]
    ranged = header[: first - offset] + f"part_start, part_stop, {step}" + header[last - offset :]
    code = textwrap.dedent(ranged) + textwrap.indent(_lines(text, loop.body, loop.body[0].lineno - 1), "    ")
    stores = [_slot(axes, "split"), *[f"tl.store({_place(s)}, {s.name})" for s in kept]]
    whole = _lines(text, before, node.body[0].lineno - 1) + "\n".join(lines) + "\n" + code.rstrip("\n") + "\n" + "\n".join(stores) + "\n"
    return _signature(text, node, f"{node.name}_part", kept) + "\n" + textwrap.indent(whole, "    ")


def _final(text: Text, node: ast.FunctionDef, loop: ast.For, kept: list[State], after: list[ast.stmt], axes: int) -> str:
    body = after_docstring(node)
    before = body[: body.index(loop)]
    needed: set[str] = {n for s in after for n in names_read(s)} | {n for s in kept for n in names_read(s.init)}
    names = {s.name for s in kept}
    chosen: list[ast.stmt] = []
    for statement in reversed(before):
        if names_written(statement) & needed and not (names_written(statement) & names and isinstance(statement, ast.Assign)):
            chosen.insert(0, statement)
            needed |= names_read(statement)
    lines = ["".join(_lines(text, [s], s.lineno - 1) for s in chosen).rstrip("\n")] if chosen else []
    lines += [f"{s.name} = {ast.unparse(s.init)}" for s in kept]
    lines.append("for split in tl.static_range(SPLITS):")
    inner = [_slot(axes, "split"), *[f"{s.name}_part = tl.load({_place(s)})" for s in kept]]
    peak = next((s for s in kept if s.kind == "peak"), None)
    if peak:
        inner.append(f"{peak.name}_next = tl.maximum({peak.name}, {peak.name}_part)")
        inner.append(f"scale_old = {peak.broadcast}({peak.name} - {peak.name}_next)")
        inner.append(f"scale_part = {peak.broadcast}({peak.name}_part - {peak.name}_next)")
    for s in kept:
        if s.kind == "sum":
            inner.append(f"{s.name} += {s.name}_part")
        elif s.kind in ("max", "min"):
            inner.append(f"{s.name} = tl.{s.kind}imum({s.name}, {s.name}_part)")
        elif s.kind == "scaled":
            inner.append(f"{s.name} = {s.name} * scale_old{s.broadcast} + {s.name}_part * scale_part{s.broadcast}")
    if peak:
        inner.append(f"{peak.name} = {peak.name}_next")
    lines += ["    " + x for x in inner]
    lines.append(_lines(text, after, loop.end_lineno or 0).rstrip("\n"))
    return _signature(text, node, f"{node.name}_combine", kept) + "\n" + textwrap.indent("\n".join(lines) + "\n", "    ")


def _host(
    text: Text,
    call: ast.Call,
    node: ast.FunctionDef,
    statement: ast.Expr,
    grid: list[ast.expr],
    kept: list[State],
    facts: KernelFacts,
    most: int,
    wanted: int,
    walked: tuple[str, str, str],
) -> str | None:
    """The statements that take the launch's place."""
    pointers = [passed(call, node, b) for a in facts.accesses if (b := a.base)]
    device = next((text.of(p) for p in pointers if isinstance(p, ast.Name)), None)
    if device is None:
        return None
    sizes: list[str] = []
    for state in kept:
        factors = [on_host(text, call, node, e) for e in state.shape]
        if any(f is None for f in factors):
            return None
        sizes.append(" * ".join(["programs", "splits", *[bracketed(f) for f in factors if f]]))
    axes = [text.of(a) for a in grid]
    own = {n.id for n in ast.walk(text.tree) if isinstance(n, ast.Name)}
    if own & {"programs", "splits"}:
        return None
    arguments = text.text[text.span(call.func)[1] :][: text.span(call)[1] - text.span(call.func)[1]].strip()
    inside = arguments[1:-1].strip()
    buffers = ", ".join(f"{s.name}_parts" for s in kept)
    ends = [on_host(text, call, node, e) for e in walked]
    limits = [str(most), f"triton.next_power_of_2({wanted} // max(programs, 1))"]
    if all(ends):
        # At least two iterations in a part; a power of two, so that few variants are compiled.
        start, stop, step = (bracketed(e) for e in ends if e)
        count = f"triton.cdiv({stop}, {step})" if start == "0" else f"triton.cdiv({stop} - {start}, {step})"
        limits.append(f"triton.next_power_of_2({count}) // 4")
    lines = [
        f"programs = {' * '.join(bracketed(a) for a in axes)}",
        f"splits = max(1, min({', '.join(limits)}))",
        "if splits == 1:",
        textwrap.indent(_lines(text, [statement], statement.lineno - 1).rstrip("\n"), "    "),
        "else:",
    ]
    lines += [
        f"    {s.name}_parts = torch.empty({size}, device={device}.device, dtype=torch.float32)"
        for s, size in zip(kept, sizes, strict=True)
    ]
    whole = ", ".join(axes)
    lines.append(f"    {node.name}_part[({whole}, splits)]({buffers}, splits, {inside})")
    lines.append(f"    {node.name}_combine[({whole}{',' if len(axes) == 1 else ''})]({buffers}, splits, {inside})")
    return textwrap.indent("\n".join(lines) + "\n", text.indent(statement))

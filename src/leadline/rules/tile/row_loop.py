"""Rewrite (b) of TIL102: a kernel that holds a whole row becomes passes over blocks of the row with one accumulator per lane."""

import ast
import textwrap

from leadline.model import KernelFacts, Launch
from leadline.rules.base import View
from leadline.rules.editing.dataflow import names_read
from leadline.rules.grid.body import after_docstring, callee
from leadline.rules.grid.launch_text import Text, kernel_in, launches_of, opened, passed, set_keyword
from leadline.rules.tile.column_blocks import CROSSING, range_extent

SUPPORTED = {"sum", "max", "min"}
IDENTITY = {"sum": "0.0", "max": '-float("inf")', "min": 'float("inf")'}
COMBINE = {"sum": "{acc} += {value}", "max": "{acc} = tl.maximum({acc}, {value})", "min": "{acc} = tl.minimum({acc}, {value})"}
FLOATS = {"fp16", "bf16", "fp32"}


class Item:
    """One step of the kernel: a scalar statement, a tile statement, a reduction, or a store. `reads` are the indices of what it uses."""

    def __init__(self, kind: str, name: str, text: str, node: ast.AST, reads: set[int]) -> None:
        self.kind, self.name, self.text, self.node, self.reads = kind, name, text, node, reads
        self.op = ""
        self.value = ""  # of a reduction: the tile expression
        self.call = ""  # of a reduction: its arguments after the first
        self.level = 0  # passes that must be over before it can run


def looped(view: View, launch: Launch, facts: KernelFacts, block: str, size: int, warps: int) -> str | None:
    """The file with the row in blocks of `size`: one loop per pass, statistics in accumulators of one value per lane.

    A maximum followed by a sum of exponentials of the distance to it is done in one pass (the online form). None unless the kernel is a
    straight list of statements over one `tl.arange(0, block)` whose only reductions are sums, maxima and minima of floating-point rows,
    bounded by an argument, and no pass reads again what an earlier one has stored.
    """
    text = opened(view, facts.file)
    node = kernel_in(text, facts) if text else None
    if text is None or node is None:
        return None
    range_name, extent = _row_range(node, block)
    if not range_name or not extent:
        return None
    items = _items(text, node, range_name, block)
    if items is None or not any(i.kind == "reduce" for i in items) or not _floating(launch, facts):
        return None
    if not _levelled(items) or not _no_reread(items, facts, launch):
        return None
    online = _online(items)
    body = after_docstring(node)
    indent = text.indent(body[0])
    code = _emit(items, online, range_name, block, extent, node)
    first = body[0].lineno
    while first - 1 > node.lineno and text.lines[first - 2].lstrip().startswith("#"):
        first -= 1
    text.edits.append((text.starts[first - 1], text.block([body[-1]])[1], textwrap.indent(code, indent)))
    for call in launches_of(text, facts.name):
        given = passed(call, node, block)
        if given is None:
            return None
        text.replace(given, str(size))
        set_keyword(text, call, "num_warps", str(warps))
    return text.result()


def _row_range(node: ast.FunctionDef, block: str) -> tuple[str, str]:
    """(name of the range, its extent), when `name = tl.arange(0, block)` is the block's only use and a comparison bounds the name."""
    mentions = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == block]
    for statement in node.body:
        if isinstance(statement, ast.Assign) and callee(statement.value) == "arange" and isinstance(statement.value, ast.Call):
            alone = len(mentions) == 1 and ast.unparse(statement.value) in (f"tl.arange(0, {block})", f"triton.language.arange(0, {block})")
            target = statement.targets[0]
            extent = range_extent(node, statement.value) if alone else None
            if isinstance(target, ast.Name) and extent:
                return target.id, extent
    return "", ""


def _items(text: Text, node: ast.FunctionDef, range_name: str, block: str) -> list[Item] | None:
    """The kernel as items in order; None when a statement has a form that is not understood."""
    items: list[Item] = []
    latest: dict[str, int] = {}
    tiles: set[str] = {range_name}
    scalars: set[str] = set()
    body = after_docstring(node)
    for position, statement in enumerate(body):
        comments = _comments(text, body, position)
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value).endswith(f"arange(0, {block})"):
            latest.pop(range_name, None)
            continue
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if not isinstance(target, ast.Name) or (isinstance(statement, ast.Assign) and len(statement.targets) != 1):
                return None
            name = target.id
        elif isinstance(statement, ast.Expr) and callee(statement.value) in ("store", "static_assert", "assume", "multiple_of"):
            name = ""
        else:
            return None
        replaced = _extract(text, statement, name, tiles, items, latest)
        if replaced is None:
            return None
        kind_is_reduction, source, tree = replaced
        if kind_is_reduction:
            items[-1].text = comments
            if name in tiles or name in scalars:
                return None
            scalars.add(name)
            latest[name] = len(items) - 1
            continue
        names = names_read(tree)
        is_tile = bool(names & tiles)
        if is_tile and any(isinstance(n, ast.Subscript) and ast.unparse(n).count("None") for n in ast.walk(tree)):
            return None
        kind = "tile" if is_tile and name else "store" if is_tile else "scalar"
        if name:
            if (kind == "tile" and name in scalars) or (kind == "scalar" and (name in tiles or name in scalars)):
                return None
            (tiles if kind == "tile" else scalars).add(name)
        items.append(Item(kind, name, comments + source, tree, {latest[n] for n in names if n in latest}))
        if name:
            latest[name] = len(items) - 1
    return items


def _comments(text: Text, body: list[ast.stmt], position: int) -> str:
    floor = (body[position - 1].end_lineno or 0) if position else 0
    first = body[position].lineno
    while first - 1 > floor and text.lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return textwrap.dedent("".join(text.lines[first - 1 : body[position].lineno - 1]))


def _extract(
    text: Text, statement: ast.stmt, name: str, tiles: set[str], items: list[Item], latest: dict[str, int]
) -> tuple[bool, str, ast.AST] | None:
    """Appends a reduction item for each reduction of a tile in the statement; (whether it was nothing else, the rest as text, its tree)."""
    found = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and callee(n) in CROSSING and _reduces(n, tiles)]
    if any(callee(n) not in SUPPORTED for n in found):
        return None
    source = "".join(text.lines[statement.lineno - 1 : statement.end_lineno])
    source = textwrap.dedent(source).rstrip("\n") + "\n"
    if not found:
        return False, source, statement
    alone = isinstance(statement, ast.Assign) and len(found) == 1 and statement.value is found[0]
    renamed: dict[str, str] = {}
    for call in found:
        if any(inner is not call and inner in found for inner in ast.walk(call)):
            return None
        operand = call.args[0] if call.args else None
        if operand is None or any(k.arg in ("keep_dims", "return_indices", "dtype") for k in call.keywords):
            return None
        temporary = name if alone else f"{name or 'row'}_{callee(call)}" + (str(len(renamed)) if renamed else "")
        item = Item("reduce", temporary, "", call, {latest[n] for n in names_read(operand) if n in latest})
        item.op, item.value = callee(call), ast.unparse(operand)
        item.call = ", ".join([*(ast.unparse(a) for a in call.args[1:]), *(f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords)])
        items.append(item)
        latest[temporary] = len(items) - 1
        renamed[ast.unparse(call)] = temporary
    if alone:
        return True, "", statement
    rest = ast.unparse(statement)
    for old, new in renamed.items():
        rest = rest.replace(old, new)
    return False, rest + "\n", ast.parse(rest).body[0]


def _reduces(call: ast.Call, tiles: set[str]) -> bool:
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id in ("tl", "language"):
        return bool(call.args) and bool(names_read(call.args[0]) & tiles)
    return bool(names_read(call.func) & tiles)  # x.sum(): not a form handled here, refused by the caller through its missing operand


def _floating(launch: Launch, facts: KernelFacts) -> bool:
    bases = {a.base for a in facts.accesses if a.kind == "load" and a.ranges}
    return all((arg := launch.argument(b or "")) is not None and arg.tensor is not None and arg.tensor.dtype in FLOATS for b in bases)


def _levelled(items: list[Item]) -> bool:
    """Gives every item the number of passes that must be over before it runs; False when the statement list needs more than four passes."""
    for item in items:
        item.level = max((items[r].level + (items[r].kind == "reduce") for r in item.reads), default=0)
    return max(i.level for i in items) <= 4


def _no_reread(items: list[Item], facts: KernelFacts, launch: Launch) -> bool:
    """Whether no pass loads from memory that an earlier pass (or an earlier statement moved behind it) has written."""
    stores = [i for i in items if callee(getattr(i.node, "value", i.node)) == "store"]
    last = max(i.level for i in items)

    def storages(kind: str) -> set[int]:
        named = {a.base for a in facts.accesses if (a.kind == "load") == (kind == "load") and a.base}
        return {arg.tensor.storage for n in named if (arg := launch.argument(n)) and arg.tensor}

    if any(a.base is None for a in facts.accesses):
        return False
    if not storages("load") & storages("store"):
        return True
    # In place is fine as long as all stores of rows come in the last pass, after the same block was read.
    return all(s.level == last for s in stores)


def _online(items: list[Item]) -> dict[int, int]:
    """sum item -> max item, for sums of exp(E - max(E)): they run in the pass of the maximum. Their levels are lowered."""
    found: dict[int, int] = {}
    for index, item in enumerate(items):
        if item.kind != "reduce" or item.op != "sum":
            continue
        call = _opened(item.value, items, item)
        if not isinstance(call, ast.Call) or callee(call) not in ("exp", "exp2") or len(call.args) != 1:
            continue
        difference = call.args[0]
        if not isinstance(difference, ast.BinOp) or not isinstance(difference.op, ast.Sub) or not isinstance(difference.right, ast.Name):
            continue
        for position, other in enumerate(items[:index]):
            if (
                other.kind == "reduce"
                and other.op == "max"
                and other.name == difference.right.id
                and other.value == ast.unparse(difference.left)
            ):
                found[index] = position
    second = {items[i].level for i in found}
    for level in second:
        rest = [i for i, x in enumerate(items) if x.level == level and (x.kind == "store" or (x.kind == "reduce" and i not in found))]
        if rest:
            found = {i: m for i, m in found.items() if items[i].level != level}
    return found


def _opened(value: str, items: list[Item], user: Item) -> ast.expr:
    """The expression of a reduction, or of the tile that it names."""
    node = ast.parse(value, mode="eval").body
    if isinstance(node, ast.Name):
        made = [items[r] for r in user.reads if items[r].name == node.id and items[r].kind == "tile"]
        if made and isinstance(made[0].node, ast.Assign):
            return made[0].node.value
    return node


def _emit(items: list[Item], online: dict[int, int], range_name: str, block: str, extent: str, node: ast.FunctionDef) -> str:
    taken = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {a.arg for a in node.args.args}
    start = next(n for n in ("start", "block_start", "column_start") if n not in taken)
    out: list[str] = []
    commented: set[int] = set()
    for level in range(max(i.level for i in items) + 1):
        out += [i.text for i in items if i.kind == "scalar" and i.level == level]
        reductions = [k for k, i in enumerate(items) if i.kind == "reduce" and i.level == level and k not in online]
        stores = [k for k, i in enumerate(items) if i.kind == "store" and i.level == level]
        if not reductions and not stores:
            continue
        joined = {k: m for k, m in online.items() if m in reductions}
        for k in reductions:
            first = "-1.0e30" if k in joined.values() else IDENTITY[items[k].op]
            out.append(f"{items[k].name}_lanes = tl.full(({block},), {first}, tl.float32)\n")
        out += [f"{items[k].name}_lanes = tl.zeros(({block},), tl.float32)\n" for k in joined]
        out.append(f"for {start} in range(0, {extent}, {block}):\n")
        inner = [f"{range_name} = {start} + tl.arange(0, {block})\n"]
        for k in _needed(items, [*reductions, *stores]):
            item = items[k]
            if item.kind == "reduce":
                inner += _accumulate(items, k, [s for s, m in joined.items() if m == k])
            else:
                comments_too = k not in commented
                inner.append(item.text if comments_too else "".join(x for x in item.text.splitlines(True) if not x.startswith("#")))
                commented.add(k)
        out.append(textwrap.indent("".join(inner), "    "))
        for k in reductions:
            item = items[k]
            out.append(f"{item.text}{item.name} = tl.{item.op}({item.name}_lanes, {item.call or '0'})\n")
        for k, m in joined.items():
            function = ast.unparse(_exp(items, k).func)
            scaled = f"{items[k].name}_lanes * {function}({items[m].name}_lanes - {items[m].name})"
            out.append(f"{items[k].text}{items[k].name} = tl.sum({scaled}, {items[k].call or '0'})\n")
    return "".join(out)


def _exp(items: list[Item], index: int) -> ast.Call:
    call = _opened(items[index].value, items, items[index])
    assert isinstance(call, ast.Call)
    return call


def _accumulate(items: list[Item], index: int, sums: list[int]) -> list[str]:
    item = items[index]
    lanes = f"{item.name}_lanes"
    if not sums:
        return [COMBINE[item.op].format(acc=lanes, value=item.value) + "\n"]
    lines = [f"{item.name}_next = tl.maximum({lanes}, {item.value})\n"]
    for k in sums:
        function, acc = ast.unparse(_exp(items, k).func), f"{items[k].name}_lanes"
        value = item.value if ast.parse(item.value, mode="eval").body.__class__ in (ast.Name, ast.Call) else f"({item.value})"
        lines.append(f"{acc} = {acc} * {function}({lanes} - {item.name}_next) + {function}({value} - {item.name}_next)\n")
    return [*lines, f"{lanes} = {item.name}_next\n"]


def _needed(items: list[Item], roots: list[int]) -> list[int]:
    """Tile items that the roots read, directly or not, and the roots, in order."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        k = todo.pop()
        if k in found:
            continue
        found.add(k)
        todo += [r for r in items[k].reads if items[r].kind == "tile"]
    return sorted(found)

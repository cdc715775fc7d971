"""A reduction over the strided axis by one program per column, rewritten to 2-D tiles over (rows, columns) and a split of the rows.

    c = tl.program_id(0)                                c = (tl.program_id(0) * COLS + tl.arange(0, COLS))[None, :]
    r = r0 + tl.arange(0, RB)                     ->    r = r0 + tl.arange(0, RB)[:, None]
    acc += tl.load(X + r * C + c, mask=r < R)           acc += tl.load(X + r * C + c, mask=(r < R) & (c < C))
    tl.store(Y + c, tl.sum(acc, 0))                     tl.store(Y + c, tl.sum(acc, 0, keep_dims=True), mask=c < C)

Every column keeps its own arithmetic; only the width of a program changes. With few columns the rows are split over a second grid
axis: the accumulator's partial results go to a buffer and a second kernel runs the statements behind the loop on them.
"""

import ast

from leadline.model import Launch, Rewrite
from leadline.rules.base import View
from leadline.rules.editing import EditError, SourceFile, free_name
from leadline.rules.memory.argument_facts import pure
from leadline.rules.memory.dead_code import without_unused
from leadline.rules.memory.index_terms import is_call

REDUCTIONS = ("sum", "max", "min", "xor_sum")
TILES = ((32, 64), (64, 32), (16, 128))  # (rows, columns) of a tile, best guess first
ENOUGH = 4  # programs per multiprocessor to aim at when rows are split


class NotColumns(Exception):
    """The kernel is not of this form."""


class Columns:
    """The parts of a column reduction. Raises NotColumns."""

    def __init__(self, file: SourceFile, launch: Launch, line: int) -> None:
        self.file, self.launch = file, launch
        self.function = file.function(launch.kernel)
        self.body = [s for s in self.function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        loops = [s for s in self.body if isinstance(s, ast.For)]
        others = [n for n in ast.walk(self.function) if isinstance(n, ast.For | ast.While | ast.If | ast.Return)]
        if len(loops) != 1 or len(others) != 1 or launch.grid[1:] != (1, 1) or launch.variants > 1:
            raise NotColumns("not one loop over rows")
        self.loop = loops[0]
        at = self.body.index(self.loop)
        self.before, self.after = self.body[:at], self.body[at + 1 :]
        nodes = [n for s in self.body for n in ast.walk(s)]
        axes = [n for n in nodes if is_call(n, "program_id")]
        ranges = [n for n in nodes if is_call(n, "arange")]
        if len(axes) != 1 or len(ranges) != 1:
            raise NotColumns("more than one axis")
        self.axis = axes[0]
        self.range: ast.AST | None = ranges[0]
        if any(isinstance(n, ast.Subscript) or is_call(n, "dot") for n in nodes) or any(
            is_call(n, a) for n in nodes for a in ("atomic_add", "cumsum", "reshape")
        ):
            raise NotColumns("more than a reduction")
        self.column = next(
            (
                s.targets[0].id
                for s in self.before
                if isinstance(s, ast.Assign) and s.value is self.axis and isinstance(s.targets[0], ast.Name)
            ),
            "",
        )
        if not self.column:
            raise NotColumns("the column has no name")
        self.reductions = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in REDUCTIONS]
        self.block = self._block()
        self.accumulators = self._accumulators()
        self.bound = self._column_bound()
        self.loads = [n for n in nodes if is_call(n, "load")]
        self.stores = [n for n in nodes if is_call(n, "store")]
        if (
            not self.stores
            or any(getattr(n, "lineno", 0) <= (self.loop.end_lineno or 0) for n in self.stores)
            or not any(getattr(n, "lineno", 0) == line for n in self.loads)
        ):
            raise NotColumns("a store in the loop")

    def _block(self) -> str:
        assert isinstance(self.range, ast.Call)
        last = self.range.args[-1] if self.range.args else None
        if not isinstance(last, ast.Name):
            raise NotColumns("the tile of rows is no parameter")
        return last.id

    def _accumulators(self) -> dict[str, ast.Assign]:
        """Names that the loop carries -> their initial assignment: zeros or full over the rows of a tile, or a number."""
        carried = {n.target.id for n in self.loop.body if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
        for s in self.loop.body:
            if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name):
                if any(isinstance(n, ast.Name) and n.id == s.targets[0].id for n in ast.walk(s.value)):
                    carried.add(s.targets[0].id)
            elif not isinstance(s, ast.AugAssign):
                raise NotColumns("more than assignments in the loop")
        found = {
            s.targets[0].id: s
            for s in self.before
            if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and s.targets[0].id in carried
        }
        if set(found) != carried or not carried:
            raise NotColumns("no accumulator")
        return found

    def _column_bound(self) -> str:
        """The parameter that holds the number of columns: the grid's size, passed under the same text."""
        site = self.file.sites(self.launch.kernel)
        if len(site) != 1:
            raise NotColumns("more than one launch")
        self.line = site[0].line
        axes = self.file.grid_axes(self.line)
        for argument in self.launch.arguments:
            counts = argument.tensor is None and argument.value == self.launch.grid[0] and len(axes) == 1
            if counts and self.file.launch_argument(self.line, argument.name) == axes[0]:
                return argument.name
        raise NotColumns("the number of columns is no parameter")


def column_reduction(view: View, launch: Launch, line: int) -> tuple[Rewrite, ...]:
    """Rewrites of the launch's kernel with 2-D tiles, best first: with a split of the rows where the columns alone fill no device.
    Empty when the kernel is of another form."""
    if launch.kernel_file != view.source.path:
        return ()
    made: list[Rewrite] = []
    for rows, columns in TILES:
        programs = -(-launch.grid[0] // columns)
        for split in (True, False) if programs < ENOUGH * view.sms else (False,):
            try:
                file = SourceFile(view.text(view.source.path))
                parts = Columns(file, launch, line)
                source = _split(parts, rows, columns, view.sms) if split else _tiled(parts, rows, columns)
            except (NotColumns, EditError):
                continue
            made.append(
                Rewrite(
                    id="",
                    rule="",
                    title=f"tiles of {rows} rows x {columns} columns" + (", rows split over programs" if split else ""),
                    source=source,
                    applicability="changes_numerics",
                    signature="global.load.bits",
                    expect="increase",
                    choices={"rows": rows, "columns": columns},
                    precondition="one program per column, one loop over rows, elementwise accumulation, stores after the loop",
                )
            )
    return tuple(made)


def tiled_alone(view: View, launch: Launch, line: int) -> tuple[str, str, int] | None:
    """(file, row tile parameter, rows): the widened kernel with a default for its new parameter, to be compiled as a probe."""
    rows, columns = TILES[0]
    try:
        parts = Columns(SourceFile(view.text(view.source.path)), launch, line)
        return _tiled(parts, rows, columns, default=True), parts.block, rows
    except (NotColumns, EditError):
        return None


def _tiled(parts: Columns, rows: int, columns: int, *, default: bool = False) -> str:
    """The file with the kernel's column and row indices two-dimensional; `default` lets it compile without the new argument."""
    file, names = parts.file, _columns_name(parts)
    _widen(parts, names)
    axes = file.grid_axes(parts.line)
    file.set_launch_argument(parts.line, parts.block, str(rows))
    file.set_grid(parts.line, f"(triton.cdiv({axes[0]}, {columns}),)")
    file.add_parameter(parts.launch.kernel, f"{names}: {file.triton_language()}.constexpr" + (f" = {columns}" if default else ""))
    file.set_launch_argument(parts.line, names, str(columns))
    return file.apply()


def _columns_name(parts: Columns) -> str:
    return free_name("COLS", parts.file.names())


def _widen(parts: Columns, columns: str) -> None:
    """Edits that make the column a range of columns and the row range a column vector; all else broadcasts."""
    file, tl = parts.file, parts.file.triton_language()
    inside = f"{parts.column} < {parts.bound}"
    file.replace_node(parts.axis, f"({tl}.program_id(0) * {columns} + {tl}.arange(0, {columns}))[None, :]")  # type: ignore[arg-type]
    if parts.range is not None:
        file.replace_node(parts.range, f"{file.layout.of(parts.range)}[:, None]")  # type: ignore[arg-type]
    for name, start in parts.accumulators.items():
        shape = start.value.args[0] if isinstance(start.value, ast.Call) and start.value.args else None
        if isinstance(start.value, ast.Constant) and isinstance(start.value.value, float):
            file.replace_node(start.value, f"{tl}.full((1, {columns}), {start.value.value!r}, {tl}.float32)")
        elif isinstance(start.value, ast.Call) and shape is not None and (is_call(start.value, "zeros") or is_call(start.value, "full")):
            size = shape.elts[0] if isinstance(shape, ast.Tuple | ast.List) and len(shape.elts) == 1 else None
            if not isinstance(size, ast.Name) or size.id != parts.block:
                raise NotColumns(f"{name} is no tile of rows")
            file.replace_node(shape, f"({size.id}, {columns})")
        else:
            raise NotColumns(f"{name} starts in another way")
    for reduction in parts.reductions:
        extra = [*reduction.args[1:]] + [k.value for k in reduction.keywords if k.arg == "axis"]
        if any(not (isinstance(a, ast.Constant) and a.value == 0) for a in extra) or any(
            k.arg not in ("axis",) for k in reduction.keywords
        ):
            raise NotColumns("a reduction along another axis")
        end = file.layout.span(reduction)[1] - 1
        file.replace(end, end, ", keep_dims=True" if extra else ", axis=0, keep_dims=True")
    for call, place in [(c, 1) for c in parts.loads] + [(c, 2) for c in parts.stores]:
        assert isinstance(call, ast.Call)
        if parts.column not in {n.id for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)}:
            if call in parts.stores:
                raise NotColumns("a store that does not depend on the column")
            continue
        mask = next((k.value for k in call.keywords if k.arg == "mask"), call.args[place] if len(call.args) > place else None)
        if mask is None:
            end = file.layout.span(call)[1] - 1
            file.replace(end, end, f", mask={inside}")
        else:
            text = file.layout.of(mask)
            file.replace_node(mask, f"({text}) & ({inside})" if not isinstance(mask, ast.Name) else f"{text} & ({inside})")


def _split(parts: Columns, rows: int, columns: int, sms: int) -> str:
    """The file with a first kernel over (columns, parts of the rows) and a second one that finishes each column."""
    file, tl, kernel = parts.file, parts.file.triton_language(), parts.launch.kernel
    if len(parts.accumulators) != 1 or len(parts.reductions) != 1:
        raise NotColumns("more than one accumulator")
    ((name, start),) = parts.accumulators.items()
    reduction = parts.reductions[0]
    if reduction.lineno <= (parts.loop.end_lineno or 0) or not isinstance(reduction.args[0], ast.Name) or reduction.args[0].id != name:
        raise NotColumns("the accumulator is not reduced behind the loop")
    if not is_call(start.value, "zeros") and not is_call(start.value, "full"):
        raise NotColumns("the accumulator is no tile")
    _associative(parts, name, reduction)
    stop = parts.loop.iter
    if not (
        isinstance(stop, ast.Call)
        and ast.unparse(stop.func) == "range"
        and len(stop.args) == 3
        and ast.unparse(stop.args[2]) == parts.block
        and ast.unparse(stop.args[0]) == "0"
        and isinstance(stop.args[1], ast.Name)
    ):
        raise NotColumns("the loop does not step by tiles")
    limit = stop.args[1].id
    argument = parts.launch.argument(limit)
    host_rows, host_columns = file.launch_argument(parts.line, limit), file.grid_axes(parts.line)[0]
    if argument is None or not pure(host_rows) or not pure(host_columns):
        raise NotColumns("the number of rows is no parameter")
    taken = file.names()
    cols, part, splits = free_name("COLS", taken), free_name("part_rows", taken), free_name("parts", taken)
    partial, second = free_name("partial", taken), free_name(f"{kernel}_finish", taken)
    pointer = next((a.name for a in parts.launch.arguments if a.tensor is not None), "")
    device = file.launch_argument(parts.line, pointer)
    if not device.isidentifier():
        raise NotColumns("no tensor to take the device from")
    second_text = _finish_kernel(parts, rows, cols, name, second, partial, splits)
    _widen(parts, cols)
    file.replace_node(stop.args[0], f"{tl}.program_id(1) * {part}")
    file.replace_node(stop.args[1], f"{tl}.minimum(({tl}.program_id(1) + 1) * {part}, {limit})")
    for statement in parts.after[:-1]:
        file.delete_statement(statement.lineno)
    file.forget_inside(parts.after)
    keep = f"{tl}.{reduction.func.attr}({name}, axis=0, keep_dims=True)"  # type: ignore[union-attr]
    file.replace_statement(
        parts.after[-1].lineno,
        f"{tl}.store({partial} + {tl}.program_id(1) * {parts.bound} + {parts.column}, {keep}, mask={parts.column} < {parts.bound})",
    )
    for parameter, text in ((f"{partial}", partial), (f"{part}", part), (f"{cols}: {tl}.constexpr", str(columns))):
        file.add_parameter(kernel, parameter, argument=text)
    file.add_function(second_text, after=kernel)
    wanted = ENOUGH * sms
    file.set_grid(parts.line, f"(triton.cdiv({host_columns}, {columns}), {splits})")
    file.set_launch_argument(parts.line, parts.block, str(rows))
    file.insert_before(
        parts.line,
        f"# rows per part: a multiple of the tile, about {wanted} programs in all\n"
        f"{part} = triton.cdiv(triton.cdiv({host_rows}, max(1, {wanted} // triton.cdiv({host_columns}, {columns}))), {rows}) * {rows}\n"
        f"{splits} = triton.cdiv({host_rows}, {part})\n"
        f"{partial} = torch.empty(({splits}, {host_columns}), device={device}.device, dtype=torch.{_dtype(start)})",
    )
    given = [
        f"{p}={file.launch_argument(parts.line, p)}"
        for p in file.parameters(kernel)
        if p not in (parts.block,) and file.launch_argument(parts.line, p)
    ]
    file.insert_after(
        parts.line,
        f"{second}[(triton.cdiv({host_columns}, 16),)]({', '.join(given)}, {partial}={partial}, {splits}={splits}, "
        f"{parts.block}=triton.next_power_of_2({splits}), {cols}=16)",
    )
    return file.apply()


def _associative(parts: Columns, name: str, reduction: ast.Call) -> None:
    """Raises NotColumns unless the loop combines values with the operation that the reduction uses."""
    kind = reduction.func.attr if isinstance(reduction.func, ast.Attribute) else ""
    for s in parts.loop.body:
        if isinstance(s, ast.AugAssign):
            fits = kind == "sum" and isinstance(s.op, ast.Add)
        elif isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and s.targets[0].id == name:
            value = s.value
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                fits = kind == "sum" and name in (ast.unparse(value.left), ast.unparse(value.right))
            else:
                wanted = {"max": "maximum", "min": "minimum"}.get(kind, "")
                fits = isinstance(value, ast.Call) and bool(wanted) and is_call(value, wanted) and name in map(ast.unparse, value.args)
        else:
            continue
        if not fits:
            raise NotColumns("the loop combines in another way than the reduction")


def _dtype(start: ast.Assign) -> str:
    """The torch dtype of the accumulator; float32 when the kernel does not say."""
    found = [n.attr for n in ast.walk(start.value) if isinstance(n, ast.Attribute) and n.attr.startswith(("float", "int"))]
    return found[0] if found else "float32"


def _finish_kernel(parts: Columns, rows: int, cols: str, name: str, second: str, partial: str, splits: str) -> str:
    """The second kernel's text: the statements before and behind the loop, on the partial results."""
    text = parts.file.function_text(parts.launch.kernel)
    file = SourceFile(text)
    function = file.function(parts.launch.kernel)
    tl = parts.file.triton_language()
    copy = Columns.__new__(Columns)
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    at = next(i for i, s in enumerate(body) if isinstance(s, ast.For))
    copy.file, copy.launch, copy.function, copy.loop = file, parts.launch, function, body[at]  # type: ignore[assignment]
    copy.before, copy.after, copy.column, copy.block, copy.bound = body[:at], body[at + 1 :], parts.column, parts.block, parts.bound
    nodes = [n for s in (*copy.before, *copy.after) for n in ast.walk(s)]
    copy.axis = next(n for n in nodes if is_call(n, "program_id"))
    copy.range = next((n for n in nodes if is_call(n, "arange")), None)  # None: made in the loop, which goes
    copy.reductions = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in REDUCTIONS]
    copy.loads, copy.stores = [n for n in nodes if is_call(n, "load")], [n for n in nodes if is_call(n, "store")]
    copy.accumulators = {}
    start = next(s for s in copy.before if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and s.targets[0].id == name)
    kind = ast.unparse(copy.reductions[0].func).rsplit(".", 1)[-1]
    neutral = {"sum": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}.get(kind)
    if neutral is None:
        raise NotColumns("a reduction without a neutral element")
    _widen(copy, cols)
    taken = parts.file.names()
    row = free_name("part", taken)
    file.forget_inside([start])
    file.replace_statement(
        start.lineno,
        f"{row} = {tl}.arange(0, {parts.block})[:, None]\n"
        f"{name} = {tl}.load({partial} + {row} * {parts.bound} + {parts.column}, mask=({row} < {splits})"
        f" & ({parts.column} < {parts.bound}), "
        f"other={neutral})",
    )
    file.delete_statement(copy.loop.lineno)
    for parameter in (partial, splits, f"{cols}: {tl}.constexpr"):
        file.add_parameter(parts.launch.kernel, parameter)
    made = without_unused(file.apply(), {parts.launch.kernel: set()})
    return made.replace(f"def {parts.launch.kernel}(", f"def {second}(", 1)

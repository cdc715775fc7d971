"""A flat elementwise kernel that takes its index apart by `//` and `%`, rewritten to a grid over rows and columns.

    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    m = i < total                                             col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    col = i % N                                         ->    i = row * N + col
    row = i // N                                              m = (col < N) & (i < total)

Everything else is elementwise and broadcasts from one to two dimensions unchanged.
"""

import ast

from leadline.model import KernelFacts, Launch
from leadline.rules.base import View
from leadline.rules.editing import EditError, SourceFile, free_name, substitute
from leadline.rules.memory.argument_facts import pure
from leadline.rules.memory.dead_code import unused_names, without_unused
from leadline.rules.memory.divisions import arithmetic, definitions, dividing, literal
from leadline.rules.memory.index_algebra import Algebra, Unsupported
from leadline.rules.memory.index_terms import is_call, stripped

# Calls that act on each element, and the few that build the index.
ELEMENTWISE = {
    "program_id",
    "arange",
    "load",
    "store",
    "where",
    "to",
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "abs",
    "maximum",
    "minimum",
    "sigmoid",
    "erf",
    "floor",
    "ceil",
    "fma",
    "clamp",
    "cdiv",
    "tanh",
    "rand",
    "randn",
    "float32",
    "cast",
    "range",
    "atomic_add",
}


NARROW = 32  # shorter rows would leave the lanes of a tile strided


class NotFlat(Exception):
    """The kernel is not of this form."""


class Flat:
    """The parts of a flat kernel. Raises NotFlat."""

    def __init__(self, function: ast.FunctionDef, launch: Launch) -> None:
        self.function, self.launch = function, launch
        self.defined = definitions(function)
        for node in (n for s in function.body for n in ast.walk(s)):
            if isinstance(node, ast.For | ast.While | ast.Try | ast.Return):
                raise NotFlat("control flow")
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
                if name not in ELEMENTWISE:
                    raise NotFlat(f"{name} may not be elementwise")
            if isinstance(node, ast.Subscript):
                raise NotFlat("a subscript fixes the rank")
        self.index, self.block = self._index()
        self.width = self._width()
        self.total = self._total()

    def _index(self) -> tuple[str, str]:
        """The name of the flat index and of the constexpr tile size."""
        for name, value in self.defined.items():
            parts = value if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) else None
            if parts is None:
                continue
            sides = [self._expanded(parts.left), self._expanded(parts.right)]
            for base, tile in (sides, sides[::-1]):
                tile_call = stripped(tile)
                if not (is_call(tile_call, "arange") and isinstance(tile_call, ast.Call) and len(tile_call.args) == 2):
                    continue
                block = tile_call.args[1]
                if not isinstance(block, ast.Name) or not isinstance(base, ast.BinOp) or not isinstance(base.op, ast.Mult):
                    continue
                factors = [stripped(self._expanded(base.left)), stripped(self._expanded(base.right))]
                if any(isinstance(f, ast.Name) and f.id == block.id for f in factors) and any(_axis_zero(f) for f in factors):
                    uses = sum(1 for s in self.function.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == block.id)
                    axes = sum(1 for s in self.function.body for n in ast.walk(s) if is_call(n, "program_id"))
                    ranges = sum(1 for s in self.function.body for n in ast.walk(s) if is_call(n, "arange"))
                    if (uses, axes, ranges) == (2, 1, 1) and self.launch.grid[1:] == (1, 1):
                        return name, block.id
        raise NotFlat("no flat index")

    def _expanded(self, node: ast.expr) -> ast.expr:
        return self.defined[node.id] if isinstance(node, ast.Name) and node.id in self.defined else node

    def _width(self) -> ast.expr:
        """The row length: the divisor of the flat index that divides all the others."""
        found = [
            n.right
            for s in self.function.body
            for n in ast.walk(s)
            if isinstance(n, ast.BinOp)
            and isinstance(n.op, ast.Mod | ast.FloorDiv)
            and isinstance(n.left, ast.Name)
            and n.left.id == self.index
        ]
        found = [f for f in found if not isinstance(f, ast.Constant)]
        if not found:
            raise NotFlat("the index is not divided")
        width = min(found, key=lambda f: sum(1 for _ in ast.walk(f)))
        if any(isinstance(n, ast.Name) and n.id in self.defined for n in ast.walk(width)):
            raise NotFlat("the row length is computed in the kernel")
        return width

    def _total(self) -> str:
        """The bound of the flat index: a parameter that it is compared with."""
        bounds = {ast.unparse(n.comparators[0]) for n in self.bounds()}
        if len(bounds) != 1:
            raise NotFlat("no single bound")
        (total,) = bounds
        if not total.isidentifier():
            raise NotFlat("the bound is an expression")
        return total

    def bounds(self) -> list[ast.Compare]:
        """Comparisons `index < total`."""
        return [
            n
            for s in self.function.body
            for n in ast.walk(s)
            if isinstance(n, ast.Compare)
            and isinstance(n.left, ast.Name)
            and n.left.id == self.index
            and len(n.ops) == 1
            and isinstance(n.ops[0], ast.Lt)
        ]


def _axis_zero(node: ast.expr) -> bool:
    if not is_call(node, "program_id") or not isinstance(node, ast.Call):
        return False
    values = [*node.args, *(k.value for k in node.keywords)]
    return len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value == 0


def row_tiled(view: View, launch: Launch, facts: KernelFacts, tile: int, *, defaults: bool = False) -> str | None:
    """The file with the kernel on a grid over rows and columns, `tile` elements per program; None when it is not of the form.

    With `defaults` the kernel's new parameters default to what this launch would pass, so that it can be compiled on its own.
    """
    if launch.kernel_file != view.source.path or any(a.kind != "load" and a.mask is None for a in facts.accesses):
        return None
    text = view.text(view.source.path)
    file = SourceFile(text)
    try:
        flat = Flat(file.function(launch.kernel), launch)
        return without_unused(_edited(file, flat, facts, launch, tile, defaults), unused_names(text))
    except (NotFlat, Unsupported, EditError):
        return None


def _edited(file: SourceFile, flat: Flat, facts: KernelFacts, launch: Launch, tile: int, defaults: bool) -> str:
    sites = file.sites(launch.kernel)
    if len(sites) != 1 or sites[0].grid is None or launch.variants > 1:
        raise NotFlat("more than one launch")
    line = sites[0].line
    length = literal(ast.unparse(flat.width), launch)
    if length is None or length < NARROW:
        raise NotFlat("rows too short for a tile")
    width = ast.unparse(flat.width)
    wide = f"({width})" if isinstance(flat.width, ast.BinOp) else width
    columns, column = _named(flat, ast.Mod, "tile_col", file)
    rows, row = _named(flat, ast.FloorDiv, "tile_row", file)
    tl = file.triton_language()
    algebra = Algebra({}, None, None)
    poly = algebra.read(flat.width)
    # Names that divide the index are expanded where they are used only when their own statement goes.
    expanded = {n: flat.defined[n] for n in (columns, rows) if n}
    algebra = Algebra(expanded, None, (flat.index, poly, row, column))
    for statement in (s for s in ast.walk(flat.function) if isinstance(s, ast.Assign | ast.AugAssign | ast.Expr)):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in (flat.index, columns, rows):
            continue
        for part in arithmetic(statement.value):
            if not dividing(part, {}):
                continue
            made = ast.unparse(
                ast.parse(algebra.text(algebra.read(part), tuple(a.name for a in launch.arguments if a.tensor)), mode="eval").body
            )
            file.replace_node(part, made)
    start = next(
        s
        for s in ast.walk(flat.function)
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and s.targets[0].id == flat.index
    )
    rows_name, cols_name = free_name("ROWS", file.names()), free_name("COLS", file.names())
    file.replace_statement(
        start.lineno,
        f"{row} = {tl}.program_id(0) * {rows_name} + {tl}.arange(0, {rows_name})[:, None]{_comment(file, flat, rows)}\n"
        f"{column} = {tl}.program_id(1) * {cols_name} + {tl}.arange(0, {cols_name})[None, :]{_comment(file, flat, columns)}\n"
        f"{flat.index} = {row} * {wide} + {column}",
    )
    for name in (columns, rows):
        for node in ast.walk(flat.function):
            if name and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
                file.delete_statement(node.lineno)
    for bound in flat.bounds():
        start_at, end = file.layout.span(bound)
        bare = file.text[start_at - 1] not in "(" or file.text[end : end + 1] != ")"
        made = f"({column} < {wide}) & ({flat.index} < {flat.total})"
        alone = file.text[:start_at].rstrip().endswith("=") and file.text[end : end + 1] in ("\n", ",", ")", "")
        file.replace(start_at, end, made if alone or not bare else f"({made})")
    _narrow_masks(file, flat, row, column, wide)
    names = {p.name: file.launch_argument(line, p.name) for p in facts.parameters}
    host_width, host_total = substitute(width, {k: v for k, v in names.items() if v}), names.get(flat.total, "")
    if not host_total or not pure(host_width) or not pure(host_total):
        raise NotFlat("sizes may not be computed twice")
    host_rows, host_cols = free_name("rows", file.names()), free_name("cols", file.names())
    file.insert_before(
        line, f"{host_cols} = min(triton.next_power_of_2({host_width}), {min(tile, 2048)})\n{host_rows} = max(1, {tile} // {host_cols})"
    )
    width_in_grid = f"({host_width})" if not host_width.isidentifier() else host_width
    file.set_grid(line, f"(triton.cdiv(triton.cdiv({host_total}, {width_in_grid}), {host_rows}), triton.cdiv({host_width}, {host_cols}))")
    file.remove_parameter(launch.kernel, flat.block)
    wanted_cols = min(1 << (length - 1).bit_length(), tile, 2048)
    for name, value in ((rows_name, max(1, tile // wanted_cols)), (cols_name, wanted_cols)):
        file.add_parameter(launch.kernel, f"{name}: {tl}.constexpr" + (f" = {value}" if defaults else ""))
    file.set_launch_argument(line, rows_name, host_rows)
    file.set_launch_argument(line, cols_name, host_cols)
    return file.apply()


def _comment(file: SourceFile, flat: Flat, name: str) -> str:
    """The trailing comment of the statement that defined `name` ("" for none): it moves to the new definition."""
    if not name:
        return ""
    rest = file.text[file.layout.span(flat.defined[name])[1] :].partition("\n")[0].strip()
    return f"  {rest}" if rest.startswith("#") else ""


def _named(flat: Flat, operator: type[ast.operator], default: str, file: SourceFile) -> tuple[str, str]:
    """(name the author gave `index % N` or `index // N`, "" for none; the name to use)."""
    for name, value in flat.defined.items():
        if (
            isinstance(value, ast.BinOp)
            and isinstance(value.op, operator)
            and isinstance(value.left, ast.Name)
            and value.left.id == flat.index
            and ast.unparse(value.right) == ast.unparse(flat.width)
        ):
            return name, name
    return "", free_name(default, file.names())


def _narrow_masks(file: SourceFile, flat: Flat, row: str, column: str, width: str) -> None:
    """Loads of one value per row or per column get a mask of their own shape. Raises NotFlat for one that depends on neither."""
    depends = {row: {"row"}, column: {"column"}, flat.index: {"row", "column"}}
    assigned = [
        (target, s.value)
        for s in ast.walk(flat.function)
        if isinstance(s, ast.Assign | ast.AugAssign)
        for target in (s.targets if isinstance(s, ast.Assign) else [s.target])
    ]
    for _ in range(len(assigned)):
        for target, value in assigned:
            if not isinstance(target, ast.Name):
                raise NotFlat("an assignment to more than a name")
            if target.id not in (row, column, flat.index):
                depends[target.id] = depends.get(target.id, set()) | _dependencies(value, flat, depends)
    for call in (n for n in ast.walk(flat.function) if is_call(n, "load") or is_call(n, "store")):
        assert isinstance(call, ast.Call)
        place = 1 if is_call(call, "load") else 2
        axes = _dependencies(call.args[0], flat, depends) if call.args else set[str]()
        mask = next((k.value for k in call.keywords if k.arg == "mask"), call.args[place] if len(call.args) > place else None)
        if not axes and mask is None:
            continue  # a scalar
        if mask is None:
            raise NotFlat("an access of a tile without a mask")
        if axes == {"row", "column"}:
            continue
        if not is_call(call, "load") or not axes:
            raise NotFlat("an access that is the same for all elements")
        if not isinstance(mask, ast.Name) or not any(b is flat.defined.get(mask.id) for b in flat.bounds()):
            raise NotFlat("a mask with more than the bound")
        file.replace_node(mask, f"{row} * {width} < {flat.total}" if axes == {"row"} else f"{column} < {width}")


def _dependencies(node: ast.AST, flat: Flat, depends: dict[str, set[str]]) -> set[str]:
    """Which of row and column an expression varies with; `index % N` is the column, `index // ...` the row."""
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod | ast.FloorDiv)
        and isinstance(node.left, ast.Name)
        and node.left.id == flat.index
    ):
        same = ast.unparse(node.right) == ast.unparse(flat.width)
        if isinstance(node.op, ast.Mod):
            return {"column"} if same else {"row", "column"}
        return {"row"}
    found: set[str] = set(depends.get(node.id, ())) if isinstance(node, ast.Name) else set()
    for child in ast.iter_child_nodes(node):
        found |= _dependencies(child, flat, depends)
    return found

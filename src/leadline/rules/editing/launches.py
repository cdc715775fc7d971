"""Launches: arguments, options and grids."""

import ast
from dataclasses import dataclass, field

from leadline.rules.editing.edits import TextEdit
from leadline.rules.editing.functions import FunctionEdits, Site
from leadline.rules.editing.layout import EditError


@dataclass
class _Grid:
    """A grid's expression and the axes to change; rendered when the edits are applied."""

    node: ast.expr
    site: Site
    inline: bool  # the expression belongs to other launches too: write the new grid into this one
    meta: str = ""  # parameter of the lambda or function around it
    axes: dict[int, str] = field(default_factory=lambda: dict[int, str]())


class LaunchEdits(FunctionEdits):
    """Operations on launches, found by the line they start on (or any line they cover); see `SourceFile`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._grids: dict[int, _Grid] = {}

    def launch(self, line: int) -> Site:
        """The launch `kernel[grid](...)` at `line`."""
        found: list[Site] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and node.lineno <= line <= (node.end_lineno or 0):
                name = node.func.value
                kernel = name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""
                found.append(Site(node, self._unaliased(kernel), node.func.slice))
        if not found:
            raise EditError(f"there is no launch at line {line}")
        return max(found, key=lambda s: (s.call.lineno == line, s.call.lineno))

    def _unaliased(self, name: str) -> str:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                value = node.value.body if isinstance(node.value, ast.IfExp) else node.value
                if isinstance(value, ast.Name):
                    return value.id
        return name

    def _order(self, site: Site) -> tuple[str, ...]:
        try:
            return self.parameters(site.kernel)
        except EditError:  # the kernel lives in another file: keywords can still be set
            return ()

    def launch_argument(self, line: int, name: str) -> str:
        """The text passed for a kernel's parameter; "" when it is not passed."""
        site = self.launch(line)
        bracket, index = self._argument(site, name, self._order(site))
        if index < 0:
            return ""
        item = self.layout.items(bracket)[0][index]
        return item.text.partition("=")[2].strip() if item.keyword else item.text

    def set_launch_argument(self, line: int, name: str, text: str) -> None:
        """Passes `text` for a kernel's parameter: in its place when it is passed already, else as a keyword."""
        site = self.launch(line)
        bracket, index = self._argument(site, name, self._order(site))
        if index < 0:
            items = self.layout.items(bracket)[0]
            last = max((i for i, item in enumerate(items) if not item.text.startswith("**")), default=-1)
            self.list_edit(bracket).insert(last, name, f"{name}={text}")
            return
        keyword = self.layout.items(bracket)[0][index].keyword
        self.list_edit(bracket).replaced[index] = f"{name}={text}" if keyword else text

    def resize_block(self, line: int, name: str, value: int) -> None:
        """Passes another number for a block size that the launch gives as a literal; equal literals of the grid move with it.

        Whether an equal number in the grid meant the block is for the judge to find out.
        """
        text = self.launch_argument(line, name)
        if not text.isdigit():
            raise EditError(f"{name} is not a literal at line {line}")
        for axis, written in enumerate(self.grid_axes(line)):
            tree = ast.parse(written, mode="eval")
            hits = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int and n.value == int(text)]
            for node in hits:
                node.value = value
            if hits:
                self.set_grid_axis(line, axis, ast.unparse(tree))
        self.set_launch_argument(line, name, str(value))

    def remove_launch_argument(self, line: int, name: str) -> None:
        """Removes what is passed for `name`; nothing happens when it is not passed."""
        site = self.launch(line)
        bracket, index = self._argument(site, name, self._order(site))
        if index >= 0:
            self.list_edit(bracket).removed.add(index)

    def set_launch_option(self, line: int, name: str, text: str) -> None:
        """Sets a launch option such as num_warps: replaces it when present, adds it otherwise."""
        site = self.launch(line)
        bracket, items = self._argument_list(site.call)
        index = next((i for i, item in enumerate(items) if item.keyword == name), -1)
        if index >= 0:
            self.list_edit(bracket).replaced[index] = f"{name}={text}"
        else:
            last = max((i for i, item in enumerate(items) if not item.text.startswith("**")), default=-1)
            self.list_edit(bracket).insert(last, name, f"{name}={text}")

    def remove_launch_option(self, line: int, name: str) -> None:
        """Removes a launch option; nothing happens when it is not given."""
        bracket, items = self._argument_list(self.launch(line).call)
        index = next((i for i, item in enumerate(items) if item.keyword == name), -1)
        if index >= 0:
            self.list_edit(bracket).removed.add(index)

    def set_launch_kernel(self, line: int, name: str) -> None:
        """Launches another kernel with the same grid and arguments."""
        head = self.launch(line).call.func
        if isinstance(head, ast.Subscript):
            self.replace_node(head.value, name)

    # -- grids

    def grid_axes(self, line: int) -> tuple[str, ...]:
        """Texts of the grid's axes, through local names, lambdas and nested functions."""
        node = self._grid(line).node
        return tuple(self.layout.of(e) for e in node.elts) if isinstance(node, (ast.Tuple, ast.List)) else (self.layout.of(node),)

    def grid_text(self, line: int) -> str:
        """Text of the grid's expression, found in the same way."""
        return self.layout.of(self._grid(line).node)

    def set_grid(self, line: int, text: str) -> None:
        """Replaces the grid between the brackets of a launch by `text`, whatever it was."""
        grid = self.launch(line).grid
        if grid is None:
            raise EditError(f"there is no grid at line {line}")
        self.replace(*self.layout.span(grid), text, key=("grid", self.launch(line).line))

    def set_grid_axis(self, line: int, axis: int, text: str) -> None:
        """Replaces one axis (0, 1, 2) of the grid where it is written; missing axes in between become 1.

        A grid that other launches share is left alone: the launch gets its own, inline.
        """
        if axis not in (0, 1, 2):
            raise EditError(f"a grid has no axis {axis}")
        self._grid(line).axes[axis] = text

    def _grid(self, line: int) -> _Grid:
        site = self.launch(line)
        if id(site.call) not in self._grids:
            self._grids[id(site.call)] = self._resolve(site, site.grid, _Grid(node=ast.Constant(value=1), site=site, inline=False), 0)
        return self._grids[id(site.call)]

    def _resolve(self, site: Site, node: ast.expr | None, grid: _Grid, depth: int) -> _Grid:
        if isinstance(node, ast.Lambda):
            grid.meta = ast.unparse(node.args)
            return self._resolve(site, node.body, grid, depth)
        if isinstance(node, ast.Name) and depth < 5:
            around = self._enclosing(site.line)
            scope = around if around is not None else self.tree
            uses = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Load)]
            grid.inline = grid.inline or len(uses) > 1
            for part in ast.walk(scope):
                if isinstance(part, ast.FunctionDef) and part.name == node.id and part is not scope:
                    returns = [r for r in ast.walk(part) if isinstance(r, ast.Return) and r.value is not None]
                    if len(returns) != 1 or len(part.body) != 1:
                        grid.inline = False
                        if len(returns) != 1 or len(uses) > 1:
                            raise EditError(f"the grid function {node.id} is too involved to change for line {site.line}")
                    grid.meta = ast.unparse(part.args)
                    return self._resolve(site, returns[0].value, grid, depth + 1)
            assigned = [
                n for n in ast.walk(scope)
                if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)
            ]  # fmt: skip
            above = [n for n in assigned if n.lineno <= site.line]
            if above:
                chosen = max(above, key=lambda n: n.lineno)
                if len(assigned) > 1:
                    raise EditError(f"the grid {node.id} of line {site.line} is assigned more than once")
                return self._resolve(site, chosen.value, grid, depth + 1)
        grid.node = node if node is not None else grid.node
        return grid

    def _enclosing(self, line: int) -> ast.FunctionDef | None:
        """The outermost function around `line`."""
        around = [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef) and n.lineno <= line <= (n.end_lineno or 0)]
        return min(around, key=lambda n: n.lineno, default=None)

    def _collected(self) -> list[TextEdit]:
        for grid in self._grids.values():
            if grid.axes:
                self._render_grid(grid)
        return super()._collected()

    def _render_grid(self, grid: _Grid) -> None:
        node = grid.node
        if not isinstance(node, (ast.Tuple, ast.List)):
            if isinstance(node, (ast.Name, ast.Call, ast.Attribute)) and not grid.inline and 0 not in grid.axes:
                raise EditError(f"the grid of line {grid.site.line} is not written as a tuple")
            old = [self.layout.of(node)]
        else:
            old = [self.layout.of(e) for e in node.elts]
        axes = [grid.axes.get(i, old[i] if i < len(old) else "1") for i in range(max(len(old), *(a + 1 for a in grid.axes)))]
        key = ("grid", grid.site.line)
        whole = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        if grid.inline and grid.site.grid is not None:
            self.replace(*self.layout.span(grid.site.grid), f"lambda {grid.meta}: {whole}" if grid.meta else whole, key=key)
        elif len(axes) == len(old) and isinstance(node, (ast.Tuple, ast.List)):
            for axis, text in grid.axes.items():
                self.replace(*self.layout.span(node.elts[axis]), text, key=(*key, axis))
        else:
            self.replace(*self.layout.span(node), whole, key=key)

"""Functions and kernels of a file: parameters, copies, renaming; with every place that calls them."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from leadline.rules.editing.dataflow import names_in
from leadline.rules.editing.edits import Edits
from leadline.rules.editing.layout import EditError, Item, reindent

LISTS_OF_NAMES = ("key", "do_not_specialize", "do_not_specialize_on_alignment", "reset_to_zero", "restore_value")


@dataclass(frozen=True)
class Site:
    """A call of a kernel: a launch `kernel[grid](...)`, or a plain call in another kernel (`grid` is None)."""

    call: ast.Call
    kernel: str
    grid: ast.expr | None

    @property
    def line(self) -> int:
        return self.call.lineno


class FunctionEdits(Edits):
    """Operations on whole functions; see `SourceFile`."""

    def function(self, name: str) -> ast.FunctionDef:
        """The definition of `name` ("Class.method" for methods); the last one when there are several."""
        owner, _, method = name.rpartition(".")
        body: list[ast.stmt] = self.tree.body
        if owner:
            classes = [n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef) and n.name == owner]
            body = classes[-1].body if classes else []
        found = [n for n in (body if owner else ast.walk(self.tree)) if isinstance(n, ast.FunctionDef) and n.name == method]
        if not found:
            raise EditError(f"there is no function {name}")
        return max(found, key=lambda n: n.lineno)

    def function_text(self, name: str) -> str:
        """The original text of a function with its decorators and comments, at its indentation."""
        node = self.function(name)
        end = self.layout.span(node)[1]
        newline = self.text.find("\n", end)
        return self.text[self.layout.offset(self._first_line(node), 0) : newline if newline >= 0 else len(self.text)]

    def names(self) -> frozenset[str]:
        """Every identifier of the file, to find free ones."""
        return names_in(self.tree)

    def triton_language(self) -> str:
        """The name under which the file imports triton.language, "tl" when it does not say."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == "triton.language" and alias.asname:
                        return alias.asname
            elif isinstance(node, ast.ImportFrom) and node.module == "triton":
                for alias in node.names:
                    if alias.name == "language":
                        return alias.asname or alias.name
        return "tl"

    # -- sites

    def sites(self, kernel: str) -> tuple[Site, ...]:
        """Every launch and call of `kernel`, under its name or a name that stands for it alone."""
        aliases = {kernel} | {
            n.targets[0].id
            for n in ast.walk(self.tree)
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and isinstance(n.value, ast.Name) and n.value.id == kernel
        }
        found: list[Site] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                head, grid = (node.func.value, node.func.slice) if isinstance(node.func, ast.Subscript) else (node.func, None)
                if isinstance(head, ast.Name) and head.id in aliases:
                    found.append(Site(node, kernel, grid))
        return tuple(sorted(found, key=lambda s: (s.call.lineno, s.call.col_offset)))

    def _all_uses_are_sites(self, kernel: str) -> tuple[Site, ...]:
        sites = self.sites(kernel)
        heads = {id(s.call.func.value if isinstance(s.call.func, ast.Subscript) else s.call.func) for s in sites}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id == kernel and isinstance(node.ctx, ast.Load) and id(node) not in heads:
                parent = self.statement(node.lineno)
                if isinstance(parent, ast.Assign) and parent.value is node:
                    continue
                raise EditError(f"line {node.lineno} uses {kernel} other than by launching it")
        return sites

    def parameters(self, function: str) -> tuple[str, ...]:
        """Names of a function's parameters that take positional arguments, in order."""
        arguments = self.function(function).args
        return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))

    def _parameter_list(self, function: str) -> tuple[int, list[Item]]:
        node = self.function(function)
        place = self.layout.span(node)[0]
        bracket = self.layout.bracket_after(place)
        return bracket, self.layout.items(bracket)[0]

    def _argument_list(self, call: ast.Call) -> tuple[int, list[Item]]:
        bracket = self.layout.bracket_after(self.layout.span(call.func)[1])
        return bracket, self.layout.items(bracket)[0]

    def _argument(self, site: Site, name: str, order: tuple[str, ...]) -> tuple[int, int]:
        """(bracket, index of the item that gives `name`, -1 when none does)."""
        bracket, items = self._argument_list(site.call)
        for index, item in enumerate(items):
            if item.keyword == name:
                return bracket, index
        if name in order:
            position = order.index(name)
            for index, item in enumerate(items):
                if item.keyword or item.text.startswith("**"):
                    break
                if item.text.startswith("*"):
                    raise EditError(f"the call at line {site.line} unpacks its arguments, so {name} cannot be found")
                if index == position:
                    return bracket, index
        if any(item.text.startswith("**") for item in items):
            raise EditError(f"the call at line {site.line} unpacks its keywords, so {name} cannot be found")
        return bracket, -1

    # -- parameters

    def add_parameter(
        self, kernel: str, parameter: str, *, after: str = "", argument: str | Mapping[int, str] | Callable[[Site], str] = ""
    ) -> None:
        """Adds `parameter` ("NAME", "NAME: tl.constexpr", "NAME=1") behind `after` (at the end by default) and passes it at every site.

        `argument` is the text passed: one for all, by line of the site, or computed; "" leaves the sites to the caller.
        """
        bracket, items = self._parameter_list(kernel)
        name = Item(0, 0, 0, False, parameter).parameter
        written = [i.parameter for i in items]
        if name in written:
            raise EditError(f"{kernel} already has a parameter {name}")
        if after:
            if after not in written:
                raise EditError(f"{kernel} has no parameter {after}")
            index = written.index(after)
        else:
            stops = [i for i, item in enumerate(items) if item.parameter.startswith("*") or ("=" in item.text and "=" not in parameter)]
            index = (stops[0] if stops else len(items)) - 1
        self.list_edit(bracket).insert(index, name, parameter)
        position = sum(1 for w in written[: index + 1] if w != "/")
        for site in self._all_uses_are_sites(kernel):
            text = argument if isinstance(argument, str) else argument(site) if callable(argument) else argument.get(site.line, "")
            place, given = self._argument_list(site.call)
            positional = [i for i in given if not i.keyword and not i.text.startswith("*")]
            if any(i.text.startswith("*") and not i.text.startswith("**") for i in given):
                raise EditError(f"the call at line {site.line} unpacks its arguments")
            if len(positional) > position:
                if not text:
                    raise EditError(f"the call at line {site.line} passes by position what follows {name}; give its argument")
                self.list_edit(place).insert(position - 1, name, text)
            elif text:
                last = max((i for i, item in enumerate(given) if not item.text.startswith("**")), default=-1)
                self.list_edit(place).insert(last, name, f"{name}={text}")

    def remove_parameter(self, kernel: str, name: str) -> None:
        """Removes a parameter, its arguments at every site, and its name from the decorators' lists and configurations.

        Uses in the body are the caller's to replace.
        """
        bracket, items = self._parameter_list(kernel)
        index = next((i for i, item in enumerate(items) if item.parameter == name), -1)
        if index < 0:
            raise EditError(f"{kernel} has no parameter {name}")
        order = self.parameters(kernel)
        for site in self._all_uses_are_sites(kernel):
            place, at = self._argument(site, name, order)
            if at >= 0:
                self.list_edit(place).removed.add(at)
        self.list_edit(bracket).removed.add(index)
        for node in self._decorations(kernel):
            if isinstance(node, ast.keyword) and node.arg in LISTS_OF_NAMES and isinstance(node.value, (ast.List, ast.Tuple)):
                self._remove_strings(node.value, name)
            elif isinstance(node, ast.Dict) and any(isinstance(k, ast.Constant) and k.value == name for k in node.keys):
                at = [k.value if isinstance(k, ast.Constant) else None for k in node.keys].index(name)
                self.list_edit(self.layout.span(node)[0]).removed.add(at)

    def _remove_strings(self, node: ast.List | ast.Tuple, name: str) -> None:
        values = [e.value if isinstance(e, ast.Constant) else None for e in node.elts]
        if name in values:
            self.list_edit(self.layout.span(node)[0]).removed.add(values.index(name))

    def _decorations(self, kernel: str) -> list[ast.AST]:
        """Nodes of a kernel's decorators, and of the module-level values they name."""
        nodes = [n for d in self.function(kernel).decorator_list for n in ast.walk(d)]
        named = {n.id for n in nodes if isinstance(n, ast.Name)}
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign) and any(isinstance(t, ast.Name) and t.id in named for t in statement.targets):
                nodes += ast.walk(statement.value)
        return nodes

    def make_constexpr(self, kernel: str, name: str) -> None:
        """Annotates a parameter as tl.constexpr, in place of its annotation. Launches stay as they are."""
        node = self._find_parameter(kernel, name)
        text = f"{self.triton_language()}.constexpr"
        if node.annotation is not None:
            if "constexpr" not in self.layout.of(node.annotation):
                self.replace_node(node.annotation, text)
            return
        end = self.layout.span(node)[1]
        # `n=1` becomes `n: tl.constexpr = 1`
        rest = self.text[end : end + 1]
        self.replace(end, end + (rest == "="), f": {text}" + (" = " if rest == "=" else ""))

    def make_runtime(self, kernel: str, name: str) -> None:
        """Removes a parameter's annotation."""
        node = self._find_parameter(kernel, name)
        if node.annotation is not None:
            self.replace(self.layout.span(node)[0] + len(name), self.layout.span(node)[1], "")

    def _find_parameter(self, function: str, name: str) -> ast.arg:
        arguments = self.function(function).args
        found = next((a for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if a.arg == name), None)
        if found is None:
            raise EditError(f"{function} has no parameter {name}")
        return found

    # -- whole functions

    def rename(self, function: str, old: str, new: str) -> None:
        """Renames a local name of a function (not a parameter) everywhere in it."""
        node = self.function(function)
        arguments = node.args
        if old in {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}:
            raise EditError(f"{old} is a parameter of {function}")
        if new in names_in(node):
            raise EditError(f"{function} already uses the name {new}")
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id == old:
                self.replace_node(part, new)

    def add_function(self, text: str, *, after: str = "") -> None:
        """Adds a top-level definition behind the top-level statement that defines `after`, or in front of the first function."""
        tops = {n.name: n for n in self.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        if after:
            if after not in tops:
                raise EditError(f"{after} is not defined at the top level")
            self._insert_behind_line(tops[after].end_lineno or 0, f"\n\n{reindent(text, '')}")
            return
        if not tops:
            self._insert_behind_line(len(self.layout.starts), f"\n\n{reindent(text, '')}")
            return
        place = self.layout.offset(self._first_line(min(tops.values(), key=lambda n: n.lineno)), 0)
        self.replace(place, place, f"{reindent(text, '')}\n\n\n", rank=1)

    def add_import(self, text: str) -> None:
        """Adds an import behind the file's last top-level import, unless it is there already."""
        imports = [n for n in self.tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
        if text.strip() in {ast.unparse(n) for n in imports}:
            return
        if imports:
            self._insert_behind_line(imports[-1].end_lineno or 0, text.strip())
        else:
            self.replace(0, 0, f"{text.strip()}\n", rank=1)

    def duplicate_kernel(self, name: str, new_name: str, change: Callable[[str], str] | None = None) -> None:
        """Adds a copy of a function under another name behind it; `change` edits the copy's text (decorators included)."""
        if new_name in self.names():
            raise EditError(f"the name {new_name} is taken")
        text = renamed_text(self.function_text(name), {name: new_name})
        self.add_function(change(text) if change else text, after=name)


def renamed_text(text: str, mapping: Mapping[str, str]) -> str:
    """A function's text with function names replaced: its own and those it uses (not attributes, keywords or locals it assigns)."""
    edits = Edits(reindent(text, ""))
    for node in ast.walk(edits.tree):
        if isinstance(node, ast.Name) and node.id in mapping:
            edits.replace_node(node, mapping[node.id])
        elif isinstance(node, ast.FunctionDef) and node.name in mapping:
            start = edits.layout.span(node)[0]
            at = edits.layout.token_at(start)
            token = next(t for t in edits.layout.tokens[at:] if t.text == node.name)
            edits.replace(token.start, token.end, mapping[node.name])
    return edits.apply()

"""The wrapper and the functions of its file that it calls: host calls, launches, assignments."""

import ast
from collections.abc import Iterator

from leadline.collect.source.host import PLAIN, REDUCE, TENSOR_MARKS, kind_of
from leadline.collect.source.module import Function, Module
from leadline.model.source import HostCall, LaunchSite, WrapperFacts

LOOPS = (ast.For, ast.While, ast.AsyncFor, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class _Reader:
    """Collects from one function and, by `follow`, from those it calls."""

    def __init__(self, module: Module, kernels: dict[str, tuple[Module, Function]]) -> None:
        self.module, self.kernels, self.text = module, kernels, module.text
        self.calls: list[HostCall] = []
        self.launches: list[LaunchSite] = []
        self.assignments: dict[str, str] = {}
        self.functions: list[str] = []
        self.seen: set[int] = set()

    def follow(self, function: Function, owner: ast.ClassDef | None = None, loop: bool = False, branch: bool = False) -> None:
        if id(function) in self.seen:
            return
        self.seen.add(id(function))
        _Body(self, function, owner).run(loop, branch)


class _Body:
    def __init__(self, reader: _Reader, function: Function, owner: ast.ClassDef | None) -> None:
        self.reader, self.function, self.owner = reader, function, owner
        self.module, self.text = reader.module, reader.text
        self.locals: dict[str, list[tuple[int, ast.expr]]] = {}  # name -> (line, assigned expression)
        self.nested: dict[str, Function] = {}
        self.tensors: set[str] = set()

    def run(self, loop: bool, branch: bool) -> None:
        for node in ast.walk(self.function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assigned(target, node.value, node.lineno)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                self._assigned(node.target, node.value, node.lineno)
            elif isinstance(node, ast.FunctionDef) and node is not self.function:
                self.nested[node.name] = node
            elif isinstance(node, ast.Attribute) and node.attr in TENSOR_MARKS and isinstance(node.value, ast.Name):
                self.tensors.add(node.value.id)
        self.tensors -= set(self.module.imports)
        for definitions in self.locals.values():
            definitions.sort(key=lambda d: d[0])
        for _ in range(2):
            for name, definitions in self.locals.items():
                if any(self._tensor(value) for _, value in definitions):
                    self.tensors.add(name)
        for name, definitions in self.locals.items():
            self.reader.assignments.setdefault(name, self.text.of(definitions[-1][1]))
        for statement in self.function.body:
            self._visit(statement, loop, branch, None)

    def _assigned(self, target: ast.expr, value: ast.expr, line: int) -> None:
        if isinstance(target, ast.Name):
            self.locals.setdefault(target.id, []).append((line, value))
        elif isinstance(target, (ast.Tuple, ast.List)):
            whole = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
            for position, part in enumerate(target.elts):
                item = value.elts[position] if whole else ast.Subscript(value=value, slice=ast.Constant(value=position), ctx=ast.Load())  # type: ignore[union-attr]
                self._assigned(part, item, line)

    def _definition(self, name: str, line: int) -> ast.expr | None:
        """The last assignment of `name` above `line`; any, when none is above; then the module's."""
        found = self.locals.get(name, [])
        above = [value for at, value in found if at <= line]
        return above[-1] if above else found[0][1] if found else self.module.constants.get(name)

    def _visit(self, node: ast.AST, loop: bool, branch: bool, target: str | None) -> None:
        if isinstance(node, ast.Call):
            self._call(node, loop, branch, target)
            target = None
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            first = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(first, ast.Name) and node.value is not None:
                target = first.id
            elif isinstance(first, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(first.elts) == len(node.value.elts):
                for part, value in zip(first.elts, node.value.elts, strict=True):
                    self._visit(value, loop, branch, part.id if isinstance(part, ast.Name) else None)
                return
        if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)):
            self._truth(node.test, loop)
        for child in ast.iter_child_nodes(node):
            inside_loop = loop or (isinstance(node, LOOPS) and child is not getattr(node, "iter", None))
            inside_branch = branch or (isinstance(node, (ast.If, ast.IfExp, ast.Try)) and child is not getattr(node, "test", None))
            self._visit(child, inside_loop, inside_branch, target if isinstance(child, ast.Call) else None)

    def _call(self, node: ast.Call, loop: bool, branch: bool, target: str | None) -> None:
        kernel = self._launched(node.func, node.lineno)
        if kernel is not None:
            self._launch(node, *kernel, loop=loop, branch=branch)
            return
        function, owner = self._callee(node.func)
        if function is not None:
            if function.name not in self.reader.functions:
                self.reader.functions.append(function.name)
            self.reader.follow(function, owner, loop, branch)
            return
        path = self.module.resolve(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        receiver = node.func.value if isinstance(node.func, ast.Attribute) and not path.startswith("torch.") else None
        kind = kind_of(path, method, node, self.text.of(node))
        if path in ("int", "float", "bool") and len(node.args) == 1 and self._tensor(node.args[0]):
            kind, receiver = "sync", node.args[0]
        if kind and kind != "other" and receiver is None and node.args and not kind.startswith("alloc"):
            receiver = node.args[0]
        if kind:
            self._record(kind, node, self.text.of(receiver), loop, target)

    def _truth(self, test: ast.expr, loop: bool) -> None:
        """`if t.any():` reads a device value."""
        for node in (test, *(v for v in ast.walk(test) if isinstance(v, (ast.UnaryOp, ast.BoolOp)))):
            for part in (node, *([node.operand] if isinstance(node, ast.UnaryOp) else node.values if isinstance(node, ast.BoolOp) else [])):
                tensor = isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in ("any", "all")
                path = self.module.resolve(part.func) if isinstance(part, ast.Call) else ""
                if tensor or path in ("torch.equal", "torch.allclose"):
                    self._record("sync", part, "", loop, None)
                    return

    def _record(self, kind: str, node: ast.expr, receiver: str, loop: bool, target: str | None) -> None:
        line, column, end, end_column = self.text.place(node)
        self.reader.calls.append(HostCall(
            kind=kind, line=line, text=self.text.of(node), column=column, end_column=end_column if end == line else 0,
            receiver=receiver, loop=loop, target=target,
        ))  # fmt: skip

    def _tensor(self, node: ast.expr) -> bool:
        """Whether an expression is evidently a tensor."""
        if isinstance(node, ast.Name):
            return node.id in self.tensors
        if isinstance(node, ast.Subscript):
            return self._tensor(node.value)
        if isinstance(node, ast.BinOp):
            return self._tensor(node.left) or self._tensor(node.right)
        if isinstance(node, ast.Call):
            path = self.module.resolve(node.func)
            if path.startswith("torch."):
                return kind_of(path, "", node, "") not in ("", "sync")
            if isinstance(node.func, ast.Attribute) and node.func.attr not in PLAIN:
                return self._tensor(node.func.value) or (node.func.attr in REDUCE and node.func.attr != "all")
        return False

    # -- functions and launches

    def _callee(self, head: ast.expr) -> tuple[Function | None, ast.ClassDef | None]:
        """The function of this file that is called, and its class."""
        if isinstance(head, ast.Name):
            found = self.module.functions.get(head.id)
            local = head.id in self.nested or head.id in self.locals
            return (None if local or head.id in self.module.kernels else found), None
        if isinstance(head, ast.Attribute) and isinstance(head.value, ast.Name):
            owner = self.owner if head.value.id in ("self", "cls") else self.module.classes.get(head.value.id)
            wanted = "forward" if head.attr == "apply" and head.value.id not in ("self", "cls") else head.attr
            return (_method(owner, wanted), owner) if owner is not None else (None, None)
        return None, None

    def _launched(self, head: ast.expr, line: int) -> tuple[str, ast.expr] | None:
        """(kernel, grid) when `head` is `kernel[grid]`, directly or by a local name."""
        if isinstance(head, ast.Name):
            defined = self._definition(head.id, line) if head.id in self.locals else None
            return self._launched(defined, line) if isinstance(defined, ast.Subscript) else None
        if not isinstance(head, ast.Subscript):
            return None
        name = self._kernel(head.value, line)
        return (name, head.slice) if name else None

    def _kernel(self, node: ast.expr, line: int, depth: int = 0) -> str:
        """The kernel an expression names; "" when it is none."""
        if isinstance(node, ast.Attribute):
            return self.module.kernel_name(node.attr) if node.attr in self.reader.kernels else ""
        if isinstance(node, ast.IfExp):
            return self._kernel(node.body, line, depth) or self._kernel(node.orelse, line, depth)
        if not isinstance(node, ast.Name) or depth > 3:
            return ""
        if node.id in self.locals:
            defined = self._definition(node.id, line)
            return self._kernel(defined, line, depth + 1) if defined is not None else ""
        name = self.module.kernel_name(node.id)
        path = self.module.imports.get(name, "").rsplit(".", 1)[-1]
        if name in self.reader.kernels:
            return name
        if path in self.reader.kernels:
            return path
        # A name imported from elsewhere and indexed with a grid before the call: a kernel whose text is not at hand.
        return name if node.id in self.module.imports and path else ""

    def _launch(self, node: ast.Call, kernel: str, grid: ast.expr, *, loop: bool, branch: bool) -> None:
        positional: list[str] = []
        for argument in node.args:
            value = argument.value if isinstance(argument, ast.Starred) else None
            if isinstance(value, ast.Name):
                value = self._definition(value.id, node.lineno)
            if isinstance(value, (ast.Tuple, ast.List)):
                positional += [self.text.of(e) for e in value.elts]
            else:
                positional.append(self.text.of(argument))
        keywords: dict[str, str] = {}
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg is not None:
                keywords[keyword.arg] = self.text.of(value)
                continue
            if isinstance(value, ast.Name):
                value = self._definition(value.id, node.lineno)
            if isinstance(value, ast.Dict):
                pairs = zip(value.keys, value.values, strict=True)
                keywords |= {str(k.value): self.text.of(v) for k, v in pairs if isinstance(k, ast.Constant)}
            elif isinstance(value, ast.Call) and self.module.resolve(value.func) == "dict":
                keywords |= {k.arg: self.text.of(k.value) for k in value.keywords if k.arg}
        order: list[str] = []
        if kernel in self.reader.kernels:
            arguments = self.reader.kernels[kernel][1].args
            order = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        mapped: dict[str, str] = {}
        for name, text in zip(order, positional, strict=False):
            if text.startswith("*"):
                break
            mapped[name] = text
        mapped |= {k: v for k, v in keywords.items() if k in order}
        resolved = self._grid(grid, node.lineno)
        axes = tuple(self.text.of(e) for e in resolved.elts) if isinstance(resolved, (ast.Tuple, ast.List)) else (self.text.of(resolved),)
        self.reader.launches.append(LaunchSite(
            kernel=kernel, line=node.lineno, end_line=node.end_lineno or node.lineno, grid=self.text.of(resolved), grid_axes=axes,
            positional=tuple(positional), keywords=keywords, arguments=mapped,
            options={k: v for k, v in keywords.items() if order and k not in order}, loop=loop, branch=branch,
        ))  # fmt: skip

    def _grid(self, grid: ast.expr, line: int, depth: int = 0) -> ast.expr:
        """The grid's expression, through local names, lambdas and nested functions (their last return)."""
        if isinstance(grid, ast.Lambda):
            return self._grid(grid.body, line, depth + 1)
        if isinstance(grid, ast.Name) and depth < 5:
            function = self.nested.get(grid.id) or (self.module.functions.get(grid.id) if grid.id not in self.locals else None)
            if function is not None:
                returns = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
                return self._grid(returns[-1], line, depth + 1) if returns else grid
            defined = self._definition(grid.id, line)
            if defined is not None and not isinstance(defined, ast.Subscript):
                return self._grid(defined, line, depth + 1)
        return grid


def _method(owner: ast.ClassDef, name: str) -> Function | None:
    return next((n for n in owner.body if isinstance(n, Function) and n.name == name), None)


def _entries(module: Module, name: str, kind: str) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Where the wrapper starts: a function, or `ModelNew.forward` (with `__init__`, which may allocate)."""
    owner_name, _, method = name.rpartition(".")
    owner = module.classes.get(owner_name or ("ModelNew" if kind == "kernelbench" else name))
    if owner is not None:
        function = _method(owner, method if owner_name else "forward")
        if function is not None:
            yield function, owner
            return
    if name in module.functions and name not in module.kernels:
        yield module.functions[name], None


def wrapper_facts(module: Module, kernels: dict[str, tuple[Module, Function]], name: str, kind: str = "case") -> WrapperFacts | None:
    """Facts of the wrapper `name` ("launch", or "ModelNew.forward"), None when the file has none. Helpers are followed."""
    for function, owner in _entries(module, name, kind):
        reader = _Reader(module, kernels)
        reader.follow(function, owner)
        return WrapperFacts(
            name=name, file=module.text.path, line=function.lineno, end_line=function.end_lineno or function.lineno,
            calls=tuple(sorted(reader.calls, key=lambda c: (c.line, c.column, -c.end_column))),
            launches=tuple(sorted(reader.launches, key=lambda site: site.line)),
            assignments=reader.assignments, functions=tuple(reader.functions),
        )  # fmt: skip
    return None

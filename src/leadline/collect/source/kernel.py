"""Walks the statements of a kernel in order, around loops until nothing new flows, and records its facts."""

import ast
from dataclasses import replace

from leadline.collect.source.expressions import Expressions, Found
from leadline.collect.source.module import Function, Module
from leadline.collect.source.value import Value, combine, merge
from leadline.model.source import Branch, KernelFacts, Loop, Parameter, Symbol

PASSES = 3  # silent passes over a loop body: dependences grow along at most this long a chain of carried names
LOOPS = {"range": "range", "static_range": "static_range"}


class Walk(Expressions):
    """One kernel. `enter` runs it; facts are in `found`."""

    def enter(self, function: Function, arguments: dict[str, Value] | None = None, ranks: dict[str, int] | None = None) -> None:
        """Walks `function`; `arguments` are the values of a call, `ranks` the ranks passed by other kernels."""
        self.loop_ids: dict[int, int] = {}
        self.branch_ids: dict[int, int] = {}
        _number(function.body, self.loop_ids, self.branch_ids)
        for parameter in _arguments(function):
            name = parameter.arg
            if arguments is not None:
                self.names[name] = arguments.get(name, Value(constexpr=True))
                continue
            fixed = _constexpr(parameter)
            base = () if fixed or name in self.integers else (name,)
            rank = (ranks or {}).get(name, 0)
            node = ast.Name(id=name, ctx=ast.Load())
            self.names[name] = Value(params=frozenset((name,)), constexpr=fixed, bases=base, rank=rank, node=node)
        self.block(function.body)

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            self._assign(node, node.targets, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node, [node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            self._augmented(node)
        elif isinstance(node, ast.Expr):
            self.root = (node.value, None, False)
            self.value(node.value)
        elif isinstance(node, ast.Return):
            self.root = (node.value, None, True)
            self.returns.append(self.value(node.value))
        elif isinstance(node, ast.For):
            self._for(node)
        elif isinstance(node, ast.While):
            self._while(node)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self.block(node.body)
        elif isinstance(node, ast.Assert):
            self.root = (None, None, True)
            self.value(node.test)

    # -- assignments

    def _assign(self, node: ast.stmt, targets: list[ast.expr], expression: ast.expr) -> None:
        name = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None
        self.root = (expression, name, True)
        value = self.value(expression)
        text = self.text.of(expression)
        for target in targets:
            self._bind_target(target, value, text, node.lineno)

    def _bind_target(self, target: ast.expr, value: Value, text: str, line: int) -> None:
        if isinstance(target, ast.Name):
            self.bind(target.id, value, text, line)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for position, part in enumerate(target.elts):
                whole = len(value.items) == len(target.elts)
                item = value.items[position] if whole else replace(value, node=None, size=1, items=())
                self._bind_target(part, item, text, line)

    def _augmented(self, node: ast.AugAssign) -> None:
        name = node.target.id if isinstance(node.target, ast.Name) else None
        self.root = (node.value, name, True)
        left = self.value(node.target) if isinstance(node.target, ast.Name) else Value(rank=-1)
        right = self.value(node.value)
        value = self.binary(node, node.op, left, right, self.text.of(node.target), self.text.of(node.value))
        if name:
            self.bind(name, value, self.text.of(node), node.lineno)

    def bind(self, name: str, value: Value, text: str, line: int) -> None:
        """Gives a local name its value, and records the symbol."""
        self.names[name] = value
        if not self.silent:
            self.found.symbols.append(Symbol(
                name=name, line=line, text=text, axes=tuple(sorted(value.axes)), ranges=tuple(sorted(value.ranges)),
                loops=tuple(sorted(value.loops)), params=tuple(sorted(value.params)), loaded=value.loaded, rank=value.rank,
            ))  # fmt: skip

    # -- loops

    def _for(self, node: ast.For) -> None:
        ident = self.loop_ids[id(node)]
        self.root = (None, None, True)
        kind, bounds, options = "range", [node.iter], {}
        if isinstance(node.iter, ast.Call):
            path = self.module.resolve(node.iter.func)
            function = path.rsplit(".", 1)[-1]
            kind = "tl.range" if function == "range" and path != "range" else LOOPS.get(function, "range")
            named = {k.arg: k.value for k in node.iter.keywords if k.arg in ("arg1", "arg2", "step", "start", "stop", "end")}
            bounds = list(node.iter.args) + [v for k, v in named.items() if k != "step"]
            options = {k.arg: self.text.of(k.value) for k in node.iter.keywords if k.arg and k.arg not in named}
            if "step" in named:
                bounds = [ast.Constant(value=0), *bounds, named["step"]] if len(bounds) == 1 else [*bounds, named["step"]]
        values = [self.value(b) for b in bounds]
        texts = [self.text.of(b) for b in bounds]
        start, stop, step = ("0", texts[0], "1") if len(texts) == 1 else (*texts, "1")[:3] if len(texts) >= 2 else ("0", "", "1")
        first = [values[0], *values[2:3]] if len(values) >= 2 else []  # the stop does not determine the variable's value
        variable = replace(combine(*first, rank=0, constexpr=kind == "static_range"), node=None)
        variable = replace(variable, loops=variable.loops | {ident})
        target = self.text.of(node.target)

        def head() -> None:
            self._bind_target(node.target, variable, self.text.of(node.iter), node.lineno)

        bound = combine(*values)
        self._loop(node, ident, head, bound, Loop(
            id=ident, kind=kind, line=node.lineno, end_line=node.end_lineno or node.lineno, target=target, start=start, stop=stop,
            step=step, options=options,
        ))  # fmt: skip

    def _while(self, node: ast.While) -> None:
        ident = self.loop_ids[id(node)]
        bound = Value()

        def head() -> None:
            nonlocal bound
            self.root = (None, None, True)
            bound = self.value(node.test)

        self._loop(node, ident, head, None, Loop(
            id=ident, kind="while", line=node.lineno, end_line=node.end_lineno or node.lineno, stop=self.text.of(node.test), step="",
        ))  # fmt: skip

    def _loop(self, node: ast.For | ast.While, ident: int, head, bound: Value | None, facts: Loop) -> None:
        before = dict(self.names)
        if id(node) not in self.carried_names:
            self.carried_names[id(node)] = _carried(node)
        carried = [n for n in self.carried_names[id(node)] if n in before]
        position = len(self.found.loops)
        if not self.silent:
            self.found.loops.append(facts)
        parent = self.loop_stack[-1] if self.loop_stack else -1
        self.loop_stack.append(ident)
        entry = dict(before)
        for name in carried:
            entry[name] = replace(entry[name], loops=entry[name].loops | {ident}, constexpr=False, items=())
        for _ in range(PASSES if carried else 0):
            self.silent += 1
            self.names = dict(entry)
            head()
            self.block(node.body)
            self.silent -= 1
            grown = False
            for name in carried:
                old, new = entry[name], self.names[name]
                widened = merge(old, replace(new, items=()))
                widened = replace(widened, node=old.node, size=old.size, constexpr=False, bases=old.bases or new.bases)
                grown = grown or widened.known != old.known
                entry[name] = widened
            if not grown:
                break
        self.names = dict(entry)
        head()
        tested = self._while_bound(node) if bound is None else bound
        self.block(node.body)
        self.loop_stack.pop()
        for name, value in self.names.items():
            if name in carried:
                # Which iteration's value it is depends on the loop: the name stays in expansions.
                merged = merge(entry[name], value)
                self.names[name] = replace(merged, node=None, size=1, bases=merged.bases)
        if not self.silent:
            self.found.loops[position] = Loop(
                **{f: getattr(facts, f) for f in ("id", "kind", "line", "end_line", "target", "start", "stop", "step", "options")},
                parent=parent, carried=tuple(carried), bound_axes=tuple(sorted(tested.axes)), bound_params=tuple(sorted(tested.params)),
                bound_loaded=tested.loaded,
            )  # fmt: skip
        self.block(node.orelse)

    def _while_bound(self, node: ast.For | ast.While) -> Value:
        self.silent += 1
        value = self.value(node.test) if isinstance(node, ast.While) else Value()
        self.silent -= 1
        return value

    # -- branches

    def _if(self, node: ast.If) -> None:
        ident = self.branch_ids[id(node)]
        self.root = (None, None, True)
        test = self.value(node.test)
        loop = self.loop_stack[-1] if self.loop_stack else -1
        if not self.silent:
            self.found.branches.append(Branch(
                id=ident, line=node.lineno, end_line=node.end_lineno or node.lineno, test=self.text.of(node.test), loop=loop,
                parent=self.branch_stack[-1] if self.branch_stack else -1, invariant=loop >= 0 and loop not in test.loops,
                axes=tuple(sorted(test.axes)), loaded=test.loaded, has_else=bool(node.orelse),
            ))  # fmt: skip
        before = dict(self.names)
        self.branch_stack.append(ident)
        self.block(node.body)
        after_body, self.names = self.names, dict(before)
        self.block(node.orelse)
        self.branch_stack.pop()
        if _leaves(node.body) or _leaves(node.orelse):
            self.names = after_body if _leaves(node.orelse) else self.names
            return
        after_else, self.names = self.names, {}
        for name in after_body | after_else:
            first, second = after_body.get(name), after_else.get(name)
            if first is not None and second is not None and first is not second:
                merged = merge(first, second)
                chosen = combine(merged, test, rank=merged.rank, constexpr=merged.constexpr and test.constexpr)
                self.names[name] = replace(chosen, bases=merged.bases, node=merged.node, size=merged.size, items=merged.items)
            else:
                self.names[name] = first or second or Value()


def _number(statements: list[ast.stmt], loops: dict[int, int], branches: dict[int, int]) -> None:
    """Numbers loops and branches in source order."""
    for node in statements:
        if isinstance(node, (ast.For, ast.While)):
            loops[id(node)] = len(loops)
        elif isinstance(node, ast.If):
            branches[id(node)] = len(branches)
        for block in ("body", "orelse", "finalbody"):
            inner = getattr(node, block, None)
            if isinstance(inner, list) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                _number(inner, loops, branches)


def _leaves(statements: list[ast.stmt]) -> bool:
    return bool(statements) and isinstance(statements[-1], (ast.Return, ast.Continue, ast.Break, ast.Raise))


def _names(node: ast.AST | None, context: type) -> set[str]:
    found: set[str] = set()
    stack = [node] if node is not None else []
    while stack:
        node = stack.pop()
        if type(node) is ast.Name:
            if type(node.ctx) is context:
                found.add(node.id)
            continue
        for name in node._fields:
            child = getattr(node, name, None)
            if isinstance(child, list):
                stack.extend(c for c in child if isinstance(c, ast.AST))
            elif isinstance(child, ast.AST):
                stack.append(child)
    return found


def _stores(node: ast.stmt) -> list[str]:
    """Names a statement assigns, in source order."""
    names = [n for n in ast.walk(node) if type(n) is ast.Name and type(n.ctx) is ast.Store]
    return [n.id for n in sorted(names, key=lambda n: (n.lineno, n.col_offset))]


def _carried(loop: ast.For | ast.While) -> list[str]:
    """Names assigned in the loop whose value of the previous iteration may be read, in order of first assignment."""
    assigned = [n for s in loop.body for n in _stores(s)]
    exposed: set[str] = set()
    if isinstance(loop, ast.While):
        exposed |= _names(loop.test, ast.Load)
        done: set[str] = set()
    else:
        done = _names(loop.target, ast.Store)
    _exposed(loop.body, done, exposed)
    return [n for n in dict.fromkeys(assigned) if n in exposed]


def _exposed(statements: list[ast.stmt], done: set[str], exposed: set[str]) -> None:
    """Adds to `exposed` the names read before they are certainly assigned (`done`, which grows)."""
    for node in statements:
        if isinstance(node, ast.AugAssign):
            reads = _names(node.value, ast.Load) | _names(node.target, ast.Store) | _names(node.target, ast.Load)
            exposed |= reads - done
            done |= _names(node.target, ast.Store)
        elif isinstance(node, ast.If):
            exposed |= _names(node.test, ast.Load) - done
            first, second = set(done), set(done)
            _exposed(node.body, first, exposed)
            _exposed(node.orelse, second, exposed)
            if _leaves(node.body):
                done |= second
            elif _leaves(node.orelse):
                done |= first
            else:
                # A name assigned on one side only keeps its old value on the other, if it is read later.
                done |= first & second
        elif isinstance(node, (ast.For, ast.While)):
            exposed |= _names(node.iter if isinstance(node, ast.For) else node.test, ast.Load) - done
            inner = set(done) | (_names(node.target, ast.Store) if isinstance(node, ast.For) else set())
            _exposed(node.body, inner, exposed)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            _exposed(node.body, done, exposed)
        else:
            exposed |= _names(node, ast.Load) - done
            done |= _names(node, ast.Store)


def _arguments(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _constexpr(argument: ast.arg) -> bool:
    return argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)


def _evidence(function: Function) -> tuple[set[str], set[str]]:
    """(parameters used as integers, parameters used as pointers), from direct uses."""
    integers: set[str] = set()
    pointers: set[str] = {a.arg for a in _arguments(function) if "ptr" in a.arg.lower() or "pointer" in a.arg.lower()}
    for node in ast.walk(function):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Sub)):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Compare) and not any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ("range", "cdiv", "min", "max", "minimum", "maximum", "static_range"):
                parts = list(node.args)
            elif name in ("load", "store", "make_block_ptr", "make_tensor_descriptor") and node.args and isinstance(node.args[0], ast.Name):
                pointers.add(node.args[0].id)
        elif isinstance(node, ast.Attribute) and node.attr == "element_ty" and isinstance(node.value, ast.Attribute):
            pointers |= _names(node.value.value, ast.Load)
        integers |= {p.id for p in parts if isinstance(p, ast.Name)}
    return integers, pointers


def kernel_facts(module: Module, kernels: dict[str, tuple[Module, Function]], name: str, ranks: dict[str, dict[str, int]]) -> KernelFacts:
    """Facts of the kernel `name` of `module`; `ranks` (callee -> parameter -> rank) is read and added to."""
    function, text = module.kernels[name], module.text
    walk = Walk(module, kernels, Found())
    integers, pointers = _evidence(function)
    walk.integers, walk.pointers, walk.argument_ranks = integers - pointers, pointers, ranks
    reads: dict[str, int] = {}
    for node in ast.walk(ast.Module(body=function.body, type_ignores=[])):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            reads[node.id] = reads.get(node.id, 0) + 1
    walk.unused = {n for s in function.body for n in _names(s, ast.Store)} - set(reads)
    walk.enter(function, ranks=ranks.get(name))
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(zip([a.arg for a in positional[len(positional) - len(arguments.defaults) :]], arguments.defaults, strict=True))
    defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
    found = walk.found
    return KernelFacts(
        name=name, file=text.path, line=function.lineno, end_line=function.end_lineno or function.lineno,
        decorators=tuple(text.of(d) for d in function.decorator_list),
        parameters=tuple(
            Parameter(
                name=a.arg, constexpr=_constexpr(a), default=text.of(defaults[a.arg]) if a.arg in defaults else None,
                annotation=text.of(a.annotation), uses=reads.get(a.arg, 0),
            )
            for a in _arguments(function)
        ),
        symbols=tuple(found.symbols), accesses=tuple(sorted(found.accesses, key=lambda a: (a.line, a.column))),
        loops=tuple(found.loops), branches=tuple(found.branches),
        operations=tuple(sorted(found.operations, key=lambda o: (o.line, o.column, -o.end_line, -o.end_column))), calls=tuple(found.calls),
    )  # fmt: skip

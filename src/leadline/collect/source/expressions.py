"""Evaluates the expressions of a kernel abstractly: dependences, ranks, expansion; records accesses and operations on the way."""

import ast
from dataclasses import dataclass, field, replace

from leadline.collect.source.module import Function, Module
from leadline.collect.source.operations import KINDS, METHODS, OPERANDS, REDUCTIONS, SYNONYMS, parameters
from leadline.collect.source.value import NODE_LIMIT, Value, broadcast_rank, combine, merge
from leadline.model.source import Access, Branch, Loop, Operation, Symbol

TEXT_LIMIT = 2000
CALL_DEPTH = 3


@dataclass
class Found:
    """What one kernel contains, in the order met."""

    symbols: list[Symbol] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


class Expressions:
    """Expression half of the walk over one kernel; `collect.source.kernel.Walk` adds statements.

    `silent` passes record nothing: they only settle what flows around a loop, and evaluate called kernels.
    """

    def __init__(self, module: Module, kernels: dict[str, tuple[Module, Function]], found: Found) -> None:
        self.module, self.kernels, self.found = module, kernels, found
        self.text = module.text
        self.names: dict[str, Value] = {}
        self.loop_stack: list[int] = []
        self.branch_stack: list[int] = []
        self.silent = 0
        self.depth = 0
        self.integers: set[str] = set()  # parameters that are evidently not pointers
        self.pointers: set[str] = set()  # parameters that evidently are
        self.returns: list[Value] = []
        self.argument_ranks: dict[str, dict[str, int]] = {}  # callee -> parameter -> highest rank passed
        self.root: tuple[ast.expr | None, str | None, bool] = (None, None, True)  # expression, its target, result used
        self.carried_names: dict[int, list[str]] = {}  # by loop node, kept over passes
        self.unused: set[str] = set()  # names assigned and never read

    # -- dispatch

    def value(self, node: ast.expr | None) -> Value:
        """The abstract value of any expression; unknown forms depend on all their parts."""
        if node is None:
            return Value(constexpr=True)
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is not None:
            return method(node)
        parts = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return replace(combine(*parts), rank=-1 if parts else 0)

    def _constant(self, node: ast.Constant) -> Value:
        return Value(constexpr=True, node=node)

    def _name(self, node: ast.Name) -> Value:
        found = self.names.get(node.id)
        if found is None:
            return Value(constexpr=True, node=node)
        return found if found.node is not None else replace(found, node=node, size=1)

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        items = tuple(self.value(item) for item in node.elts)
        kind = type(node)
        return self._built(replace(combine(*items), items=items), lambda parts: kind(elts=parts, ctx=ast.Load()), *items)

    _list = _tuple

    def _starred(self, node: ast.Starred) -> Value:
        return replace(self.value(node.value), node=None, items=())

    def _built(self, value: Value, build, *parts: Value) -> Value:
        """`value` with an expanded node made of the parts' nodes, unless one has none or it grew too large."""
        size = 1 + sum(part.size for part in parts)
        nodes = [part.node for part in parts]
        if size > NODE_LIMIT or any(n is None for n in nodes):
            return replace(value, node=None, size=1)
        return replace(value, node=build(nodes), size=size)

    # -- operators

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        return self.binary(node, node.op, left, right, self.text.of(node.left), self.text.of(node.right))

    def binary(self, node: ast.expr | ast.stmt, op: ast.operator, left: Value, right: Value, left_text: str, right_text: str) -> Value:
        """Value of `left op right`; `node` is where it stands (an augmented assignment is one too)."""
        result = combine(left, right)
        if isinstance(op, (ast.Add, ast.Sub)):
            result = replace(result, bases=self._bases(left, right))
        kind = {ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Div: "truediv", ast.Pow: "pow", ast.MatMult: "dot"}.get(type(op))
        if kind in ("floordiv", "mod") and left.tile:
            result = replace(result, divmod=True)
        if kind and not result.constexpr:
            detail = {"right_constexpr": _flag(right.constexpr), "left_tile": _flag(left.tile), "right_tile": _flag(right.tile)}
            self.operation(kind, node, (left_text, right_text), detail, left.tile or right.tile)
        return self._built(result, lambda n: ast.BinOp(left=n[0], op=op, right=n[1]), left, right)

    def _bases(self, left: Value, right: Value) -> tuple[str, ...]:
        if not left.bases or not right.bases:
            return left.bases or right.bases
        # A pointer plus an offset that may be a plain integer argument; `offset + pointer` is rare, so evidence is asked for.
        certain = self.pointers.issuperset(right.bases) and not self.pointers.issuperset(left.bases)
        return right.bases if certain else left.bases

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        result = replace(value, bases=(), items=())
        return self._built(result, lambda n: ast.UnaryOp(op=node.op, operand=n[0]), value)

    def _boolop(self, node: ast.BoolOp) -> Value:
        parts = [self.value(v) for v in node.values]
        return self._built(combine(*parts), lambda n: ast.BoolOp(op=node.op, values=n), *parts)

    def _compare(self, node: ast.Compare) -> Value:
        parts = [self.value(v) for v in (node.left, *node.comparators)]
        return self._built(combine(*parts), lambda n: ast.Compare(left=n[0], ops=node.ops, comparators=n[1:]), *parts)

    def _ifexp(self, node: ast.IfExp) -> Value:
        test, first, second = self.value(node.test), self.value(node.body), self.value(node.orelse)
        union = combine(test, first, second)
        bases = merge(first, second).bases
        result = replace(union, rank=broadcast_rank(first.rank, second.rank), bases=bases)
        return self._built(result, lambda n: ast.IfExp(test=n[0], body=n[1], orelse=n[2]), test, first, second)

    def _attribute(self, node: ast.Attribute) -> Value:
        value = self.value(node.value)
        if node.attr == "T":
            self.operation("trans", node, (self.text.of(node.value),), {"function": "T"}, value.tile)
            return self._built(replace(value, bases=(), items=()), lambda n: ast.Attribute(value=n[0], attr="T", ctx=ast.Load()), value)
        # dtype, shape, numel ... are known when compiling and carry no data.
        return Value(constexpr=True, node=node)

    def _subscript(self, node: ast.Subscript) -> Value:
        value = self.value(node.value)
        index = node.slice
        parts = list(index.elts) if isinstance(index, ast.Tuple) else [index]
        inner = self.value(index) if not isinstance(index, ast.Slice) else Value(constexpr=True, node=index)
        if value.items and len(parts) == 1 and isinstance(index, ast.Constant) and isinstance(index.value, int):
            return value.items[index.value] if -len(value.items) <= index.value < len(value.items) else Value(rank=-1)
        shaped = all(isinstance(p, ast.Slice) or (isinstance(p, ast.Constant) and p.value is None) for p in parts)
        if shaped:
            result = replace(value, rank=len(parts), items=())
        else:
            result = replace(combine(value, inner), rank=0 if value.constexpr else -1, constexpr=value.constexpr, bases=value.bases)
        return self._built(result, lambda n: ast.Subscript(value=n[0], slice=index, ctx=ast.Load()), value)

    # -- calls

    def _call(self, node: ast.Call) -> Value:
        path = self.module.resolve(node.func)
        name = self.module.kernel_name(path.rsplit(".", 1)[-1])
        if isinstance(node.func, ast.Name) and name in self.kernels and not path.startswith("triton."):
            return self._kernel_call(name, node)
        if path and path.split(".")[0] not in self.names and name in self.kernels and not path.startswith("triton."):
            return self._kernel_call(name, node)
        head = node.func
        if path.startswith("triton") or "libdevice" in path:
            return self._function(name, node, None)
        if isinstance(head, ast.Attribute):
            return self._method(head, node)
        if path in ("min", "max", "abs"):
            parts = [self.value(a) for a in node.args]
            return self._call_built(combine(*parts), node, node.func, parts, {})
        if path in ("range", "len", "float", "int", "bool", "print", "tuple"):
            parts = [self.value(a) for a in node.args]
            return self._call_built(combine(*parts), node, node.func, parts, {})
        self.value(head) if not isinstance(head, ast.Name) else None
        parts = [self.value(a) for a in node.args] + [self.value(k.value) for k in node.keywords]
        return replace(combine(*parts), rank=-1 if any(p.rank for p in parts) else 0, bases=())

    def _method(self, head: ast.Attribute, node: ast.Call) -> Value:
        if head.attr in ("load", "store", "gather", "scatter") or head.attr.startswith("atomic_"):
            self.silent += 1
            receiver = self.value(head.value)
            self.silent -= 1
            if not receiver.tile or receiver.bases:
                return self._descriptor(head, node, receiver)
        if head.attr in METHODS or head.attr in ("to", "dot"):
            return self._function(head.attr, node, head.value)
        parts = [self.value(head.value), *(self.value(a) for a in node.args), *(self.value(k.value) for k in node.keywords)]
        return replace(combine(*parts), rank=parts[0].rank, bases=())

    def _call_built(self, result: Value, node: ast.Call, func: ast.expr, parts: list[Value], keywords: dict[str, Value]) -> Value:
        count = len(parts)

        def build(nodes: list[ast.expr]) -> ast.expr:
            pairs = [ast.keyword(arg=k, value=n) for k, n in zip(keywords, nodes[count:], strict=True)]
            return ast.Call(func=func, args=nodes[:count], keywords=pairs)

        return self._built(result, build, *parts, *keywords.values())

    def _function(self, name: str, node: ast.Call, receiver: ast.expr | None) -> Value:
        """A `triton.language` function, or the method of that name when `receiver` is given."""
        root = self.root
        arguments = ([receiver] if receiver is not None else []) + list(node.args)
        order = parameters(name)
        bound: dict[str, ast.expr] = {}
        for position, argument in enumerate(arguments):
            bound[order[position] if position < len(order) else f"arg{position}"] = argument
        for keyword in node.keywords:
            if keyword.arg:
                bound[SYNONYMS.get(keyword.arg, keyword.arg) if SYNONYMS.get(keyword.arg) in order else keyword.arg] = keyword.value
        values = {key: self.value(argument) for key, argument in bound.items()}
        self.root = root
        if name in ("load", "store") or name.startswith("atomic_"):
            return self._access(name, node, bound, values)
        return self._plain(name, node, receiver, bound, values)

    def _plain(self, name: str, node: ast.Call, receiver: ast.expr | None, bound: dict[str, ast.expr], values: dict[str, Value]) -> Value:
        kind = KINDS.get(name)
        operands = [key for key in bound if key in OPERANDS or key.startswith("arg") or key in ("y", "z") or kind in ("math", "cat")]
        first = next(iter(values.values()), Value(constexpr=True))
        result = self._result(name, node, first, bound, values)
        tile = any(values[key].tile for key in operands) or (kind in ("arange", "constant") and result.tile)
        if kind is not None:
            detail = {key: self.text.of(bound[key]) for key in bound if key not in operands or key == "acc" or kind == "dot"}
            detail["function"] = name
            if name in REDUCTIONS:
                detail["op"] = detail.get("combine_fn", name)
                detail.setdefault("axis", "None")
            if kind == "floordiv" and len(operands) == 2:
                left, right = (values[key] for key in operands)
                detail |= {"right_constexpr": _flag(right.constexpr), "left_tile": _flag(left.tile), "right_tile": _flag(right.tile)}
            if kind != "floordiv" or not result.constexpr:
                self.operation(kind, node, tuple(self.text.of(bound[key]) for key in operands), detail, tile)
        positional, keywords, func = [], {}, node.func
        for position, (key, value) in enumerate(values.items()):
            if receiver is not None and position == 0:
                continue
            if position < len(node.args) + (receiver is not None):
                positional.append(value)
            else:
                keywords[key] = value
        if receiver is None:
            return self._call_built(result, node, func, positional, keywords)
        if first.node is None:
            return replace(result, node=None, size=1)
        made = self._call_built(result, node, ast.Attribute(value=first.node, attr=name, ctx=ast.Load()), positional, keywords)
        size = made.size + first.size
        return replace(made, size=size) if size <= NODE_LIMIT else replace(made, node=None, size=1)

    def _result(self, name: str, node: ast.Call, first: Value, bound: dict[str, ast.expr], values: dict[str, Value]) -> Value:
        """Dependences and rank of a function's result."""
        union = combine(*values.values())
        kind = KINDS.get(name)
        if name == "arange":
            return replace(union, ranges=frozenset((node.lineno,)), rank=1, constexpr=False)
        if name == "program_id":
            axis = bound.get("axis") or bound.get("x")
            known = isinstance(axis, ast.Constant) and axis.value in (0, 1, 2)
            return Value(axes=frozenset((axis.value,) if known else (0, 1, 2)))  # type: ignore[union-attr]
        if name == "num_programs":
            return Value()
        if name in ("full", "zeros"):
            return replace(union, rank=self._length(values.get("shape")), constexpr=False)
        if name in REDUCTIONS or name == "softmax":
            rank = self._reduced(name, first, bound)
            result = replace(union, rank=rank, constexpr=False, divmod=False)
            both = "return_indices" in bound and not (isinstance(flag := bound["return_indices"], ast.Constant) and not flag.value)
            return replace(result, items=(result, result)) if both else result
        if kind == "dot":
            return replace(union, rank=max(2, *(v.rank for v in values.values())), constexpr=False, divmod=False)
        if name == "expand_dims":
            axis = values.get("axis")
            more = len(axis.items) if axis is not None and axis.items else 1
            return replace(first, rank=first.rank + more if first.rank >= 0 else -1, items=())
        if name in ("reshape", "view", "broadcast_to"):
            shape = [v for key, v in values.items() if v is not first]
            rank = self._length(shape[0]) if len(shape) == 1 and shape[0].items else len(shape)
            return replace(first, rank=rank or -1, items=())
        if name == "broadcast":
            return replace(union, items=(union, union))
        if name == "ravel":
            return replace(first, rank=1, items=())
        if name == "join":
            return replace(union, rank=union.rank + 1 if union.rank >= 0 else -1)
        if name == "split":
            part = replace(first, rank=first.rank - 1 if first.rank > 0 else -1, items=(), node=None)
            return replace(part, items=(part, part))
        if name in ("to", "cast", "multiple_of", "max_contiguous", "max_constancy", "trans", "permute", "advance", "sort", "constexpr"):
            more = first if name in ("multiple_of", "max_contiguous", "max_constancy") else combine(*values.values())
            return replace(more, rank=first.rank, bases=first.bases, constexpr=first.constexpr)
        if name in ("cumsum", "cumprod", "associative_scan", "gather", "zeros_like", "full_like"):
            return replace(union, rank=first.rank, constexpr=False)
        if name in ("make_block_ptr", "make_tensor_descriptor"):
            shape = values.get("block_shape")
            base = values.get("base", first)
            rank = self._length(shape)
            # Rank of what it points at; a descriptor itself is no tile, but what it loads has this rank.
            return replace(union, rank=rank, bases=base.bases, constexpr=False)
        if name == "where":
            last = list(values.values())[1:]
            bases = merge(last[0], last[1]).bases if len(last) == 2 else ()
            return replace(union, bases=bases)
        if kind == "inline_asm":
            return replace(union, constexpr=False)
        if kind is None and not values:
            return Value(constexpr=True)
        return union

    @staticmethod
    def _length(shape: Value | None) -> int:
        """Length of a shape: of a tuple, 1 for a single extent, -1 when unknown."""
        if shape is None:
            return -1
        return len(shape.items) if shape.items else (1 if shape.constexpr and not isinstance(shape.node, ast.Attribute) else -1)

    @staticmethod
    def _reduced(name: str, first: Value, bound: dict[str, ast.expr]) -> int:
        keep = bound.get("keep_dims")
        if name == "softmax" or (isinstance(keep, ast.Constant) and keep.value is True):
            return first.rank
        axis = bound.get("axis")
        if axis is None or (isinstance(axis, ast.Constant) and axis.value is None):
            return first.rank if name == "reduce_or" and first.rank < 0 else 0
        return first.rank - 1 if first.rank > 0 else first.rank

    # -- kernels called

    def _kernel_call(self, name: str, node: ast.Call) -> Value:
        """Evaluates a called kernel's body silently with these arguments."""
        root, module, function = self.root, *self.kernels[name]
        order = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        values = {order[i] if i < len(order) else f"arg{i}": self.value(a) for i, a in enumerate(node.args)}
        values |= {k.arg: self.value(k.value) for k in node.keywords if k.arg}
        self.root = root
        ranks = self.argument_ranks.setdefault(name, {})
        for key, value in values.items():
            ranks[key] = max(ranks.get(key, value.rank), value.rank)
        if not self.silent and name not in self.found.calls:
            self.found.calls.append(name)
        union = combine(*values.values(), rank=-1, constexpr=False)
        if self.depth >= CALL_DEPTH:
            return replace(union, loaded=True, loops=union.loops.union(self.loop_stack))
        inner = type(self)(module, self.kernels, Found())
        inner.silent, inner.depth, inner.argument_ranks = 1, self.depth + 1, self.argument_ranks
        inner.integers, inner.pointers, inner.carried_names = self.integers, self.pointers, self.carried_names
        inner.enter(function, values)  # type: ignore[attr-defined]
        if not inner.returns:
            return replace(union, rank=0)
        result = inner.returns[0]
        for other in inner.returns[1:]:
            result = merge(result, other)
        return self._seen_from_here(result, union, node, values)

    def _seen_from_here(self, result: Value, union: Value, node: ast.Call, values: dict[str, Value]) -> Value:
        """A callee's value with the callee's own loops dropped and its expression replaced by the call."""
        items = tuple(replace(self._seen_from_here(i, union, node, values), node=None, items=()) for i in result.items)
        result = replace(result, loops=result.loops & union.loops, node=None, size=1, items=items, constexpr=False)
        positional = list(values.values())[: len(node.args)]
        keywords = dict(list(values.items())[len(node.args) :])
        return self._call_built(result, node, node.func, positional, keywords)

    # -- memory

    def _access(self, name: str, node: ast.Call, bound: dict[str, ast.expr], values: dict[str, Value]) -> Value:
        pointer = values.get("pointer", Value(rank=-1))
        mask = values.get("mask")
        keywords = {k: self.text.of(v) for k, v in bound.items() if k not in ("pointer", "mask", "other", "value", "cmp")}
        if "cmp" in bound:
            keywords["cmp"] = self.text.of(bound["cmp"])
        self.record_access(
            name, node, pointer,
            pointer_text=self.text.of(bound.get("pointer")), expanded=self.expand(pointer, bound.get("pointer")),
            mask=self.text.of(bound["mask"]) if "mask" in bound else None,
            mask_expanded=self.expand(mask, bound["mask"]) if mask is not None else None,
            other=self.text.of(bound["other"]) if "other" in bound else None,
            value=self.text.of(bound["value"]) if "value" in bound else None, keywords=keywords,
        )  # fmt: skip
        return self._data(name, node, pointer, [values[k] for k in ("mask", "other") if k in values], values)

    def _data(self, name: str, node: ast.Call, pointer: Value, more: list[Value], values: dict[str, Value]) -> Value:
        """What a load or an atomic returns."""
        if name == "store":
            return Value()
        result = replace(combine(pointer, *more), rank=pointer.rank, loaded=True, divmod=False, constexpr=False)
        if name.startswith("atomic"):
            # Another program may have changed it: it differs in every iteration.
            result = replace(result, loops=result.loops.union(self.loop_stack))
            return result
        positional = list(values.values())[: len(node.args)]
        return self._call_built(result, node, node.func, positional, dict(list(values.items())[len(node.args) :]))

    def _descriptor(self, head: ast.Attribute, node: ast.Call, receiver: Value) -> Value:
        root = self.root
        parts = [self.value(a) for a in node.args] + [self.value(k.value) for k in node.keywords]
        self.root = root
        index = parts[0] if parts else Value()
        place = replace(combine(receiver, index), rank=receiver.rank, bases=receiver.bases)
        offsets = self.expand(index, node.args[0] if node.args else None)
        value = node.args[1] if len(node.args) > 1 else next((k.value for k in node.keywords if k.arg == "value"), None)
        if head.attr == "store" and value is None and node.args:
            value = node.args[-1]
        self.record_access(
            f"descriptor_{head.attr}", node, place, pointer_text=self.text.of(head.value),
            expanded=f"{self.text.of(head.value)}{offsets}", mask=None, mask_expanded=None, other=None,
            value=self.text.of(value) if value is not None else None, keywords={},
        )  # fmt: skip
        if head.attr in ("store", "scatter"):
            return Value()
        return replace(place, loaded=True, bases=(), divmod=False, rank=place.rank or len(index.items) or -1)

    # -- recording

    def expand(self, value: Value, node: ast.expr | None) -> str:
        """The expanded text of a value; the source text when it would be longer than 2000 characters."""
        if self.silent:
            return ""
        if value.node is not None:
            text = ast.unparse(value.node)
            if len(text) <= TEXT_LIMIT:
                return text
        return ast.unparse(node) if node is not None else ""

    def target(self, node: ast.expr) -> str | None:
        """The name `node`'s value is assigned to, looking through casts: `x = tl.load(p).to(tl.float32)` loads x."""
        root, name, _ = self.root
        while root is not node and isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute) and root.func.attr == "to":
            root = root.func.value
        return name if root is node else None

    def operation(self, kind: str, node: ast.expr | ast.stmt, operands: tuple[str, ...], detail: dict[str, str], tile: bool) -> None:
        if self.silent:
            return
        line, column, end_line, end_column = self.text.place(node)
        self.found.operations.append(Operation(
            kind=kind, line=line, column=column, end_line=end_line, end_column=end_column, text=self.text.of(node), operands=operands,
            detail=detail, loop=self.loop_stack[-1] if self.loop_stack else -1, branch=self.branch_stack[-1] if self.branch_stack else -1,
            tile=tile, target=self.target(node) if isinstance(node, ast.expr) else None,
        ))  # fmt: skip

    def record_access(self, kind: str, node: ast.Call, place: Value, *, pointer_text: str, expanded: str, mask: str | None,
                      mask_expanded: str | None, other: str | None, value: str | None, keywords: dict[str, str]) -> None:  # fmt: skip
        if self.silent:
            return
        line, column, end_line, end_column = self.text.place(node)
        target = self.target(node)
        root, _, used = self.root
        self.found.accesses.append(Access(
            kind=kind, line=line, column=column, end_line=end_line, end_column=end_column, text=self.text.of(node), pointer=pointer_text,
            base=place.bases[0] if len(place.bases) == 1 else None, expanded=expanded, mask=mask, mask_expanded=mask_expanded,
            other=other, value=value, target=target, keywords=keywords,
            loop=self.loop_stack[-1] if self.loop_stack else -1, branch=self.branch_stack[-1] if self.branch_stack else -1,
            axes=tuple(sorted(place.axes)), loops=tuple(sorted(place.loops)), ranges=tuple(sorted(place.ranges)),
            indirect=place.loaded, divmod=place.divmod, rank=place.rank,
            result_used=kind.find("atomic") >= 0 and (used or root is not node) and not (target is not None and target in self.unused),
        ))  # fmt: skip


def _flag(value: bool) -> str:
    return "true" if value else "false"

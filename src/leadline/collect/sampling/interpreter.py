"""Triton's interpreter with the memory taken out: a builder that records addresses, and kernels rewritten so that loops can be thinned.

Imported only in the interpret worker (TRITON_INTERPRET=1 before the first import of triton).
"""

import ast
import builtins
import contextlib
import io
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as interp

from leadline.collect.sampling.recorder import Cut, Recorder

TRITON_FOLDER = str(Path(interp.__file__).parents[1])
_HOOK = "__leadline_sampler__"  # the one name rewritten kernels know us by; lives in builtins while sampling
_FLOATS = (np.float16, np.float32, np.float64)
ONE = {"bf16": 0x3F80, "fp8e4nv": 0x38, "fp8e5": 0x3C, "fp8e4b8": 0x40, "fp8e5b16": 0x40, "fp8e4b15": 0x78}


class _Many:
    """Result of inline assembly: one handle per output."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def get_result(self, index: int) -> Any:
        return self._handles[index]


class SamplingBuilder(interp.InterpreterBuilder):
    """Loads give made-up values, stores and atomics do nothing; all of them are recorded.

    Values are element numbers for integers (times `scale`, so that two runs differ wherever data decide an address) and `scale`'s
    sign for floats. They make index tables, offsets and lengths plausible, no more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recorder, self.scale = Recorder(0.0, TRITON_FOLDER), 1
        # Overflow checks would double the work and can only fail on made-up values.
        self.options = interp.InterpreterOptions(sanitize_overflow=False)

    # memory

    def create_masked_load(self, ptrs, mask, other, cache_modifier, eviction_policy, is_volatile):
        element = ptrs.get_element_ty()
        active = None if mask is None else np.broadcast_to(getattr(mask, "data", mask), ptrs.data.shape)
        self.recorder.access("load", ptrs.data, active, _itemsize(element))
        values = self._values(ptrs.data, element)
        if other is not None and active is not None:
            values = np.where(active, values, other.data).astype(values.dtype)
        elif active is not None and not active.all():
            values = np.where(active, values, np.zeros((), values.dtype))
        return interp.TensorHandle(values, element)

    def create_masked_store(self, ptrs, value, mask, cache_modifier, eviction_policy):
        active = None if mask is None else np.broadcast_to(getattr(mask, "data", mask), ptrs.data.shape)
        self.recorder.access("store", ptrs.data, active, _itemsize(ptrs.get_element_ty()))

    def create_atomic_rmw(self, rmwOp, ptr, val, mask, sem, scope):
        active = None if mask is None else np.broadcast_to(mask.data, ptr.data.shape)
        self.recorder.access("atomic", ptr.data, active, _itemsize(ptr.get_element_ty()))
        return interp.TensorHandle(np.zeros_like(val.data), val.dtype.scalar)

    def create_atomic_cas(self, ptr, cmp, val, sem, scope):
        # Zeros: a lock is found free.
        self.recorder.access("atomic", ptr.data, None, _itemsize(ptr.get_element_ty()))
        return interp.TensorHandle(np.zeros_like(cmp.data), cmp.dtype.scalar)

    def _values(self, pointers: np.ndarray, element: Any) -> np.ndarray:
        dtype = interp._get_np_dtype(element)
        if dtype.type in _FLOATS:
            return np.full(pointers.shape, 1.0 if self.scale == 1 else -1.0, dtype)
        if element.name in ONE or str(element) in ONE:
            return np.full(pointers.shape, ONE.get(str(element), 0), dtype)
        number = (pointers & np.uint64((1 << 40) - 1)) // np.uint64(_itemsize(element))
        if dtype == np.bool_:
            return np.full(pointers.shape, self.scale == 1, dtype)
        return ((number + np.uint64(1)) * np.uint64(self.scale)).astype(dtype)

    # arithmetic

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        *batch, m, k = a.data.shape
        flops = 2.0 * m * k * b.data.shape[-1] * (float(np.prod(batch)) if batch else 1.0)
        name = str(a.dtype.scalar)
        self.recorder.dot(flops, "tf32" if name == "fp32" and "ieee" not in str(input_precision).lower() else name)
        return interp.TensorHandle(d.data, d.dtype.scalar)

    def create_dot_scaled(self, lhs, lhs_scale, lhs_format, rhs, rhs_scale, rhs_format, fast_math, lhs_pack, rhs_pack, acc):
        m, n = acc.data.shape[-2:]
        self.recorder.dot(2.0 * m * n * rhs.data.shape[-2], "fp8e4nv")
        return acc

    def binary_op(self, lhs, rhs, op):
        if lhs.data.dtype.type in _FLOATS:
            self.recorder.arithmetic(max(lhs.data.size, rhs.data.size))
        else:
            self.recorder.check_time()
        return super().binary_op(lhs, rhs, op)

    def unary_op(self, arg, op):
        if arg.data.dtype.type in _FLOATS:
            self.recorder.arithmetic(arg.data.size)
        return super().unary_op(arg, op)

    def create_select(self, cond, lhs, rhs):
        if cond.data.size > 1:
            self.recorder.where(np.broadcast_to(cond.data, np.broadcast_shapes(cond.data.shape, lhs.data.shape)))
        return self.ternary_op(cond, lhs, rhs, np.where)

    def create_fma(self, x, y, z):
        self.recorder.arithmetic(2 * max(x.data.size, z.data.size))
        return super().create_fma(x, y, z)

    def create_erf(self, arg):
        # numpy has none, and a Python loop over the tile would cost seconds; the value does not matter.
        self.recorder.arithmetic(arg.data.size)
        return arg

    def cast_impl(self, src, dst_type):
        source, target = src.dtype.scalar, dst_type.scalar
        if source == tl.bfloat16 and target == tl.float32:
            return interp.TensorHandle((src.data.astype(np.uint32) << 16).view(np.float32), target)
        if source == tl.float32 and target == tl.bfloat16:
            data = np.ascontiguousarray(src.data)
            return interp.TensorHandle((data.view(np.uint32) >> 16).astype(np.uint16), target)
        return super().cast_impl(src, dst_type)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        target = dst_type.scalar
        dtype = interp._get_np_dtype(target)
        if dtype.type in _FLOATS:
            return interp.TensorHandle(np.ones(src.data.shape, dtype), target)
        return interp.TensorHandle(np.full(src.data.shape, ONE.get(str(target), 0), dtype), target)

    def create_extern_elementwise(self, libName, libPath, symbol, argList, retType, isPure):
        return self._opaque(argList, retType)

    def create_inline_asm(self, inlineAsm, constraints, values, type, isPure, pack):
        return _Many([self._opaque(values, t) for t in (type if isinstance(type, (list, tuple)) else [type])])

    def _opaque(self, values, result):
        shape = np.broadcast_shapes(*(v.data.shape for v in values)) if values else (1,)
        self.recorder.arithmetic(int(np.prod(shape)))
        return interp.TensorHandle(np.zeros(shape, interp._get_np_dtype(result)), result.scalar)

    # statements about values: ours are made up

    def create_assert(self, condition, message):
        pass

    def create_assume(self, condition):
        pass

    def create_print(self, prefix, hex, values, isSigned):
        pass


def _itemsize(element: Any) -> int:
    return max(1, element.primitive_bitwidth // 8)


class _Rewriter(interp.ASTTransformer):
    """Triton's own rewriting, plus: `for` over a range and `while` go through the recorder."""

    def visit_For(self, node: ast.For) -> ast.AST:
        kind = _range_kind(node.iter)
        names = _assigned(node.body)
        self.generic_visit(node)
        if not kind or not isinstance(node.iter, ast.Call):
            return node
        keywords = {k.arg: k.value for k in node.iter.keywords if k.arg in ("arg1", "arg2", "step")}
        arguments = [*node.iter.args[:3], *(keywords[k] for k in ("arg1", "arg2") if k in keywords)]
        if "step" in keywords and len(arguments) == 1:
            arguments.insert(0, ast.Constant(value=0))
        if "step" in keywords:
            arguments.append(keywords["step"])
        node.iter = _at(node.iter, _hook("iterate", [ast.Constant(value=kind), *arguments]))
        if names:
            left = ast.Tuple(elts=[ast.Name(id=n, ctx=ast.Store()) for n in names], ctx=ast.Store())
            right = ast.Tuple(elts=[ast.Name(id=n, ctx=ast.Load()) for n in names], ctx=ast.Load())
            node.body.append(_at(node.iter, ast.Assign(targets=[left], value=_hook("advance", [right]))))
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        leave = ast.If(test=ast.UnaryOp(op=ast.Not(), operand=node.test), body=[ast.Break()], orelse=[])
        turn = ast.Name(id="__leadline_turn__", ctx=ast.Store())
        return ast.copy_location(
            ast.For(target=turn, iter=_at(node.test, _hook("endless", [])), body=[leave, *node.body],
                    orelse=node.orelse), node)  # fmt: skip


def _at(place: ast.AST, node: Any) -> Any:
    """`node` at the place of another. A call that spanned the loop's body would report the body's last line as its own."""
    return ast.fix_missing_locations(ast.copy_location(node, place))


def _hook(name: str, arguments: list[ast.expr]) -> ast.Call:
    function = ast.Attribute(value=ast.Name(id=_HOOK, ctx=ast.Load()), attr=name, ctx=ast.Load())
    return ast.Call(func=function, args=arguments, keywords=[])


def _range_kind(node: ast.expr) -> str:
    if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
        return ""
    if isinstance(node.func, ast.Name):
        return node.func.id if node.func.id in ("range", "static_range") else ""
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("range", "static_range"):
        return "static_range" if node.func.attr == "static_range" else "tl.range"
    return ""


def _assigned(body: list[ast.stmt]) -> list[str]:
    """Names that every iteration surely binds: targets of plain assignments at the top of the body."""
    names: dict[str, None] = {}
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AugAssign):
            targets = [statement.target]
        names.update({t.id: None for t in targets if isinstance(t, ast.Name)})
    return list(names)


def _whole(value: Any) -> int:
    """A Python integer from an int, a constexpr or a scalar tensor."""
    if isinstance(value, tl.tensor):
        return int(value.handle.data.reshape(-1)[0])
    return int(getattr(value, "value", value))


def _scalar(value: int) -> Any:
    small = -(2**31) <= value < 2**31
    dtype = tl.int32 if small else tl.int64
    return tl.tensor(interp.TensorHandle(np.array([value], np.int32 if small else np.int64), dtype), dtype)


def _difference(new: Any, old: Any) -> Any:
    if isinstance(new, tl.tensor) and isinstance(old, tl.tensor):
        a, b = new.handle, old.handle
        if isinstance(a, interp.BlockPointerHandle) and isinstance(b, interp.BlockPointerHandle):
            return [x.data - y.data for x, y in zip(a.offsets, b.offsets, strict=True)]
        if isinstance(a, interp.TensorHandle) and isinstance(b, interp.TensorHandle):
            return a.data - b.data if a.data.dtype.kind in "iu" and a.data.shape == b.data.shape else None
    if type(new) is int and type(old) is int:
        return new - old
    return None


def _shift(value: Any, delta: Any, count: int) -> Any:
    if delta is None:
        return value
    if isinstance(delta, int):
        return value + delta * count
    handle = value.handle
    if isinstance(delta, list):
        offsets = [interp.TensorHandle(o.data + d * o.data.dtype.type(count), o.dtype)
                   for o, d in zip(handle.offsets, delta, strict=True)]  # fmt: skip
        handle = interp.BlockPointerHandle(handle.base, handle.shape, handle.strides, offsets, handle.block_shape, handle.order)
    else:
        handle = interp.TensorHandle(handle.data + delta * handle.data.dtype.type(count), handle.dtype)
    return tl.tensor(handle, value.type)


class _Hook:
    """What a rewritten kernel calls. The recorder changes from program to program, the rewritten text does not."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None

    def iterate(self, kind: str, *bounds: Any) -> Iterator[Any]:
        assert self.recorder is not None
        wrap = int if kind == "static_range" else _scalar
        return self.recorder.iterate(*_caller(), kind, wrap, *(_whole(b) for b in bounds))

    def endless(self) -> Iterator[int]:
        assert self.recorder is not None
        return self.recorder.endless(*_caller())

    def advance(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self.recorder is not None
        return self.recorder.advance(values, _difference, _shift)


def _caller() -> tuple[str, int]:
    frame = sys._getframe(2)
    return frame.f_code.co_filename, frame.f_lineno


class Session:
    """The interpreter patched for sampling; use as a context manager, then `run_program` as often as wanted."""

    def __init__(self) -> None:
        self._hook, self._builder = _Hook(), SamplingBuilder()
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> "Session":
        self._set(interp.FunctionRewriter, "ast_transformer", _Rewriter())
        self._set(interp.InterpretedFunction, "rewritten_fn", {})
        self._set(builtins, _HOOK, self._hook)
        self._patch_language()
        return self

    def __exit__(self, *exc: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        missing = object()
        old = vars(owner).get(name, missing)
        self._undo.append(lambda: delattr(owner, name) if old is missing else setattr(owner, name, old))
        setattr(owner, name, value)

    def _patch_language(self) -> None:
        """Bind Triton's language to our builder. The interpreter would do it again at every call of a device function."""
        patch = interp._patch_lang
        self._set(interp, "interpreter_builder", self._builder)
        scope = patch(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        self._undo.append(scope.restore)
        self._set(interp, "_patch_lang", lambda fn: scope)
        scope.set_attr(tl.tensor, "__index__", _whole)
        for name in ("reduce", "associative_scan"):
            for module in (tl, tl.core):
                scope.set_attr(module, name, _quick(getattr(module, name), name, self._builder))
        for name in ("static_print", "device_print"):
            scope.set_attr(tl, name, lambda *a, **k: None)

    def run_program(self, function: Any, arguments: dict[str, Callable[[SamplingBuilder], Any]], grid: tuple[int, int, int],
                    program: tuple[int, int, int], recorder: Recorder, scale: int) -> str:  # fmt: skip
        """Run one program into `recorder`; returns "" or why it stopped early (one line)."""
        builder = self._builder
        builder.recorder, builder.scale, self._hook.recorder = recorder, scale, recorder
        builder.set_grid_dim(*grid)
        builder.set_grid_idx(*program)
        restore = _bind_libdevice(function.fn, builder)
        try:
            with np.errstate(all="ignore"), contextlib.redirect_stdout(io.StringIO()):
                function.rewrite()(**{name: make(builder) for name, make in arguments.items()})
        except Cut:
            return "a program was cut short by the time budget"
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, interp.InterpreterError) and cause.__cause__ is not None:
                cause = cause.__cause__
            text = str(cause).splitlines()[0] if str(cause) else ""
            return f"the interpreter stopped: {type(cause).__name__}: {text}"[:300]
        finally:
            restore()
        return ""


def _quick(full: Any, name: str, builder: SamplingBuilder) -> Any:
    """`full`, unless its combine function is the user's: that would run element by element in Python, for a value nobody reads."""
    standard = tl.standard
    known = {getattr(standard, n, None) for n in (
        "_sum_combine", "_prod_combine", "_elementwise_max", "_elementwise_min", "_argmax_combine_tie_break_left",
        "_argmin_combine_tie_break_left")}  # fmt: skip

    def call(input: Any, axis: Any, combine_fn: Any, *args: Any, **kwargs: Any) -> Any:
        parts = input if isinstance(input, tuple) else (input,)
        builder.recorder.arithmetic(parts[0].handle.data.size * len(parts))
        fast = combine_fn in known and not (name == "associative_scan" and combine_fn is standard._elementwise_max)
        if fast:
            kwargs.pop("_semantic", None)
            kwargs.pop("_generator", None)
            return full(input, axis, combine_fn, *args, **kwargs)
        if name == "associative_scan":
            return input
        keep = bool(args[0] if args else kwargs.get("keep_dims", False))
        results = tuple(_first_along(p, axis, keep) for p in parts)
        return results if isinstance(input, tuple) else results[0]

    return call


def _first_along(value: Any, axis: Any, keep: bool) -> Any:
    data = value.handle.data
    axis = getattr(axis, "value", axis)
    if axis is None:
        data = data.reshape(-1)[:1].reshape((1,) * data.ndim) if keep else data.reshape(-1)[0]
    else:
        data = np.take(data, [0], axis) if keep else np.take(data, 0, axis)
    kind = value.dtype
    if getattr(data, "shape", ()):
        return tl.tensor(interp.TensorHandle(data, kind.scalar), tl.block_type(kind, list(data.shape)))
    return tl.tensor(interp.TensorHandle(np.array([data]), kind.scalar), kind)


def _bind_libdevice(function: Any, builder: SamplingBuilder) -> Callable[[], None]:
    """Math library functions are stubs that only compile: each becomes "an operation on its widest operand". Returns the undoing."""

    def operation(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in args if isinstance(a, tl.tensor)]
        if not tensors:
            return args[0] if args else None
        widest = max(tensors, key=lambda t: t.handle.data.size)
        builder.recorder.arithmetic(widest.handle.data.size)
        return widest

    spaces = [function.__globals__]
    spaces += [vars(v) for v in function.__globals__.values()
               if isinstance(v, types.ModuleType) and v.__name__.endswith("libdevice")]  # fmt: skip
    changed: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for space in spaces:
        stubs = {n: v for n, v in space.items()
                 if isinstance(v, types.FunctionType) and (v.__module__ or "").endswith("libdevice")}  # fmt: skip
        space.update(dict.fromkeys(stubs, operation))
        changed.append((space, stubs))
    return lambda: [space.update(stubs) for space, stubs in changed].clear()

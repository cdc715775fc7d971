"""Triton's CPU interpreter made fit for judging: repairs, autotuners that do not benchmark, and memory bounds. Runs in workers.

Seen on 3.6: bf16 arithmetic and dots work on bit patterns, fp32 -> bf16 truncates, one-element arrays no longer convert with
NumPy >= 2.4, an autotuner asks for a device, an access out of bounds kills the process, a float argument is a Python number where the
compiled kernel has a tensor (`eps.to(tl.float32)`), functions of libdevice return None. All are mended here.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from leadline.errors import EvidenceError, InternalError
from leadline.execution.frames import is_user_file, original_path
from leadline.verify import libdevice
from leadline.verify.comparison import tensors


class Bounds:
    """The memory that a launch may touch, and what it touched beyond. `first` names the first violation."""

    def __init__(self) -> None:
        self.active = False
        self.low = self.high = np.empty(0, np.uint64)
        self.violations = 0
        self.first = ""
        self._pool: list[torch.Tensor] = []
        self._roots: list[Any] = []
        self._known = -1

    def watch(self, inputs: Any, allocated: list[torch.Tensor]) -> None:
        self.active, self.violations, self.first = True, 0, ""
        self._roots, self._pool, self._known = list(tensors(inputs)), allocated, -1

    def refresh(self, arguments: list[Any]) -> None:
        """Take in what was allocated since, and the arguments of the launch that starts now."""
        ranges: dict[int, int] = {}
        for tensor in [*self._roots, *self._pool, *tensors(arguments)]:
            if tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                ranges[storage.data_ptr()] = max(ranges.get(storage.data_ptr(), 0), storage.nbytes())
        starts = sorted(start for start, size in ranges.items() if size)
        self.low = np.array(starts, np.uint64)
        self.high = np.array([start + ranges[start] for start in starts], np.uint64)

    def inside(self, addresses: Any, itemsize: int) -> Any:
        """Boolean array: which addresses lie wholly in known memory."""
        addresses = addresses.astype(np.uint64)
        if not len(self.low):
            return np.zeros(addresses.shape, bool)
        index = np.searchsorted(self.low, addresses, side="right").astype(np.int64) - 1
        held = index >= 0
        index = np.maximum(index, 0)
        return held & (addresses + np.uint64(itemsize) <= self.high[index])

    def check(self, kind: str, addresses: Any, mask: Any, itemsize: int) -> Any:
        """The mask without lanes that leave known memory; counts them."""
        addresses = np.asarray(addresses)
        if not mask.any():
            return mask
        ok = self.inside(addresses, itemsize)
        outside = mask & ~ok
        if outside.any():
            if not self.violations:
                self.first = f"{kind} out of bounds{_user_line()} ({int(outside.sum())} of {outside.size} lanes)"
            self.violations += int(outside.sum())
            return mask & ok
        return mask


def _user_line() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            return f" at {os.path.basename(original_path(name))}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


BOUNDS = Bounds()
launches = 0  # grids run so far in this process
ghost = False  # True: grids do nothing


def count() -> int:
    """How many kernel launches the interpreter has run (or skipped as ghosts)."""
    return launches


def prepare() -> None:
    """Patch the interpreter once per process. Raises EvidenceError without triton, InternalError when it is not interpreting."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise InternalError("the interpreter's worker was started without TRITON_INTERPRET=1")
    try:
        from triton.runtime import interpreter
    except ImportError as error:
        raise EvidenceError(f"the interpreter is not available: {error}", remedy="install triton and torch") from None
    if getattr(interpreter, "_leadline", False):
        return
    interpreter._leadline = True  # type: ignore[attr-defined]
    _repair_bf16(interpreter)
    _repair_index(interpreter)
    _repair_floats(interpreter)
    libdevice.install()
    _bypass_autotuner()
    _guard_memory(interpreter)
    _count_launches(interpreter)


def _repair_bf16(interpreter: Any) -> None:
    """bf16 is held as uint16: decode before arithmetic and dots, round to nearest even where fp32 is narrowed to it."""
    import triton.language as tl

    builder, convert = interpreter.InterpreterBuilder, interpreter._convert_float
    dot = builder.create_dot

    def decode(handle: Any) -> Any:
        if getattr(handle.dtype, "scalar", handle.dtype) != tl.bfloat16:
            return handle
        if handle.data.dtype != np.uint16:  # the outcome of a comparison keeps its operands' type
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def narrowed(data: Any) -> Any:
        return interpreter.TensorHandle(convert_float(data, tl.float32, tl.bfloat16, None), tl.bfloat16)

    def widened(plain: Any) -> Any:
        """`plain`, a method of the builder, with bf16 operands taken as fp32 and a result in fp32 rounded to bf16 again."""

        def method(self: Any, *given: Any) -> Any:
            wide = [decode(g) if isinstance(g, interpreter.TensorHandle) else g for g in given]
            if all(w is g for w, g in zip(wide, given, strict=True)):
                return plain(self, *given)
            out = plain(self, *wide)
            return narrowed(out.data) if out.data.dtype == np.float32 else interpreter.TensorHandle(out.data, tl.bfloat16)

        return method

    cast = builder.cast_impl

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar == tl.bfloat16 and src.dtype.scalar not in (tl.bfloat16, tl.float32):
            return narrowed(np.asarray(src.data, np.float32))
        return cast(self, src, dst_type)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, decode(a), decode(b), d, *rest)

    def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source == tl.float32 and target == tl.bfloat16:
            bits = np.ascontiguousarray(data, np.float32).view(np.uint32)
            rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
            return np.where(np.isnan(data), np.uint32(0x7FC0), rounded).astype(np.uint16).reshape(data.shape)
        if source == tl.bfloat16 and target == tl.float32:
            return (np.ascontiguousarray(data).astype(np.uint32) << np.uint32(16)).reshape(data.shape)
        return convert(data, source, target, rounding)

    builder.create_dot, interpreter._convert_float, builder.cast_impl = create_dot, convert_float, cast_impl
    for name in ("binary_op", "ternary_op", "unary_op", "create_fma", "create_rsqrt"):
        setattr(builder, name, widened(getattr(builder, name)))


def _repair_index(interpreter: Any) -> None:
    """NumPy 2.4 refuses int() of a one-element array, on which a loop with a runtime bound relies."""
    original = interpreter._patch_lang_tensor
    parameters = original.__code__.co_argcount

    def patch(tensor: Any, *rest: Any) -> None:
        original(tensor, *rest)

        def index(self: Any) -> int:
            return int(np.asarray(self.handle.data).reshape(-1)[0])

        if rest and hasattr(rest[0], "set_attr"):
            rest[0].set_attr(tensor, "__index__", index)
        else:
            tensor.__index__ = index

    if parameters <= 2:
        interpreter._patch_lang_tensor = patch


def _repair_floats(interpreter: Any) -> None:
    """Float arguments become fp32 tensors, as the JIT makes them."""
    import triton.language as tl

    convert = interpreter._implicit_cvt

    def implicit(argument: Any) -> Any:
        if isinstance(argument, float):
            return tl.tensor(interpreter.TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)
        return convert(argument)

    interpreter._implicit_cvt = implicit


def _bypass_autotuner() -> None:
    """An autotuner takes its first surviving configuration: in the interpreter all of them mean the same."""
    from triton.runtime.autotuner import Autotuner

    def bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        return [0.0, 0.0, 0.0]

    Autotuner._bench = bench  # type: ignore[method-assign]


def _guard_memory(interpreter: Any) -> None:
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def itemsize(ptrs: Any) -> int:
        return max(1, ptrs.get_element_ty().primitive_bitwidth // 8)

    def guarded(kind: str, ptrs: Any, mask: Any) -> Any:
        if not BOUNDS.active:
            return mask
        bare = isinstance(mask, np.ndarray)  # descriptors hand over arrays, everything else a handle
        lanes = np.asarray(mask if bare else mask.data)
        kept = BOUNDS.check(kind, ptrs.data, lanes, itemsize(ptrs))
        if kept is lanes:
            return mask
        return kept if bare else handle(kept, mask.dtype)

    def masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **more: Any) -> Any:
        return load(self, ptrs, guarded("load", ptrs, mask), other, *rest, **more)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        return store(self, ptrs, value, guarded("store", ptrs, mask), *rest, **more)

    def atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        return rmw(self, op, ptr, val, guarded("atomic", ptr, mask), *rest)

    def atomic_cas(self: Any, ptr: Any, cmp: Any, val: Any, *rest: Any) -> Any:
        everywhere = np.ones_like(ptr.data, dtype=bool)
        if BOUNDS.active and not BOUNDS.check("atomic", ptr.data, everywhere, itemsize(ptr)).all():
            raise IndexError("atomic_cas out of bounds")  # it has no mask to drop the lane with
        return cas(self, ptr, cmp, val, *rest)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = atomic_rmw, atomic_cas


def _count_launches(interpreter: Any) -> None:
    call = interpreter.GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        global launches
        launches += 1
        if ghost:
            return
        if BOUNDS.active:
            described = [a.base if hasattr(a, "base") and hasattr(a, "block_shape") else a for a in (*args, *kwargs.values())]
            BOUNDS.refresh(described)
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():  # the executor's own copies are no allocations of the wrapper
            call(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = counted


@contextlib.contextmanager
def watching(inputs: Any, allocated: list[torch.Tensor]) -> Iterator[Bounds]:
    """Check every access of the launches inside against the inputs and allocations; stray lanes are dropped and counted."""
    BOUNDS.watch(inputs, allocated)
    try:
        yield BOUNDS
    finally:
        BOUNDS.active = False


@contextlib.contextmanager
def ghosts() -> Iterator[None]:
    """Kernels do nothing inside: outputs must change, or the kernels did not compute them."""
    global ghost
    ghost = True
    try:
        yield
    finally:
        ghost = False

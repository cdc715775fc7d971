"""Recording kernel launches in place of running them, specialised by the installed JIT itself. Workers only: imports triton."""

import contextlib
import copy
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import torch
import triton.language as tl
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

from leadline.errors import KernelError
from leadline.execution.frames import calling_frame, one_line, original_path
from leadline.ingest.operations import Operations
from leadline.ingest.tensors import Storages
from leadline.model import Argument, Launch

VARIANT_LIMIT = 16  # autotune configurations traced per launch; all are counted
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class Pointer:
    """What the JIT's specialisation may see of a tensor that has no data: element type, address, size of the storage."""

    def __init__(self, tensor: Any, base: torch.Tensor, address: int) -> None:
        self.tensor, self.dtype, self._address = tensor, tensor.dtype, address
        self._range = base.untyped_storage().nbytes()

    def data_ptr(self) -> int:
        return self._address

    def ptr_range(self) -> int:
        return int(self._range)


class StandInKernel:
    """What a launch or a warm-up returns in place of a compiled kernel: typical figures, and launching again records again."""

    def __init__(self, recorder: "LaunchRecorder", function: JITFunction[Any], options: dict[str, Any]) -> None:
        self._recorder, self._function, self._options = recorder, function, options
        self.n_regs, self.n_spills, self.n_max_threads, self.asm = 64, 0, 1024, {}
        known = {"shared": 16384, "num_warps": 4, "num_stages": 3, "num_ctas": 1, "name": function.__name__}
        self.metadata = SimpleNamespace(**known | {k: v for k, v in options.items() if k in _OPTIONS})

    def _init_handles(self) -> None:
        return None

    def result(self) -> "StandInKernel":
        return self

    def __getitem__(self, grid: Any) -> Any:
        def run(*args: Any, stream: object = None) -> "StandInKernel":
            return self._recorder.record(self._function, args, self._options, grid)

        return run


class LaunchRecorder:
    """Collects the launches of one trace. `file` is the user's file as loaded; `operations` tells what ran between them."""

    def __init__(self, file: str, storages: Storages, operations: Operations) -> None:
        self.file, self.storages, self.operations = file, storages, operations
        self.launches: list[Launch] = []
        self._variant = ("", 0, 1)
        self._heuristics: tuple[str, ...] = ()
        self._key: tuple[str, ...] = ()
        self._operations_at_last = -1
        self._binders: dict[int, Any] = {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within the block every launch is recorded and none runs."""
        recorder = self

        def run(function: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> StandInKernel:
            if warmup:
                return StandInKernel(recorder, function, kwargs)
            return recorder.record(function, args, kwargs, grid)

        def tune(tuner: Autotuner, *args: Any, **kwargs: Any) -> Any:
            return recorder._every_config(tuner, args, kwargs)

        apply_heuristics = Heuristics.run

        def decide(heuristics: Heuristics, *args: Any, **kwargs: Any) -> Any:
            before, recorder._heuristics = recorder._heuristics, recorder._heuristics + tuple(heuristics.values)
            try:
                return apply_heuristics(heuristics, *args, **kwargs)
            finally:
                recorder._heuristics = before

        with (
            mock.patch.object(JITFunction, "run", run),
            mock.patch.object(Autotuner, "run", tune),
            mock.patch.object(Heuristics, "run", decide),
        ):
            yield

    def record(self, function: JITFunction[Any], args: Any, kwargs: dict[str, Any], grid: Any) -> StandInKernel:
        """Append the launch as the JIT would specialise it, or count it as a repetition of the one before."""
        frame = calling_frame(self.file)
        place = f"{original_path(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""
        name = function.__name__
        given = dict(kwargs)
        full = kwargs | {"debug": bool(kwargs.get("debug", function.debug)), "instrumentation_mode": ""}
        backend, binder = self._binder(function)
        try:
            bound, specialization, _ = binder(*map(self._argument, args), **{k: self._argument(v) for k, v in full.items()})
            options, signature, _, _ = function._pack_args(backend, full, bound, specialization, None)
        except (TypeError, KeyError, ValueError, AssertionError) as error:
            text = one_line(error)
            text = text.strip("'\"") if isinstance(error, KeyError) else text.replace("dynamic_func()", f"{name}()")
            raise KernelError(f"kernel {name} cannot be launched: {text}", where=place) from None
        values = {k: _original(v) for k, v in bound.items()}
        extents = self._grid(name, grid, values, place)
        arguments = tuple(
            self._describe(parameter, signature[parameter], entry, values[parameter], function)
            for parameter, entry in zip(signature, specialization, strict=True)
        )
        kept = [k for k in (*_OPTIONS, *given) if k not in signature and hasattr(options, k)]
        file, line = _definition(function)
        text, index, count = self._variant
        launch = Launch(
            index=len(self.launches), kernel=function.fn.__name__, kernel_file=original_path(file), kernel_line=line,
            kernel_module="" if file == self.file else function.fn.__module__,
            call_file=original_path(frame.f_code.co_filename) if frame else "", call_line=frame.f_lineno if frame else 0,
            grid=extents, arguments=arguments, options={k: _scalar(getattr(options, k)) for k in dict.fromkeys(kept)},
            variant=text, variant_index=index, variants=count, heuristics=self._heuristics, autotune_key=self._key,
        )  # fmt: skip
        self._append(launch)
        if index == 0:
            self._written_by(values.values())
        return StandInKernel(self, function, given)

    def _append(self, launch: Launch) -> None:
        done = sum(not op.view for op in self.operations.host_ops)
        last = self.launches[-1] if self.launches else None
        same = last is not None and msgspec.structs.replace(launch, index=last.index, repeats=last.repeats) == last
        if last is not None and same and done == self._operations_at_last:
            self.launches[-1] = msgspec.structs.replace(last, repeats=last.repeats + 1)
        else:
            self.launches.append(launch)
        self._operations_at_last = done
        self.operations.launches = len(self.launches)

    def _written_by(self, values: Any) -> None:
        """A kernel may have written into what the wrapper allocated; inputs are taken to be only read."""
        for value in values:
            tensor = getattr(value, "base", value)
            if isinstance(tensor, torch.Tensor) and not self.storages.origins.get(self.storages.number(tensor), "").startswith("input:"):
                self.operations.values.forget(tensor)

    def _every_config(self, tuner: Autotuner, args: Any, kwargs: dict[str, Any]) -> Any:
        """Each configuration becomes a launch of its own (a variant), up to VARIANT_LIMIT of them."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        try:
            configs = list(tuner.prune_configs(kwargs))
        except Exception:
            configs = []  # pruning wants something that only a device can tell
        configs = configs or list(tuner.configs)
        before = self._variant, self._key
        result = None
        try:
            for index, config in enumerate(configs[:VARIANT_LIMIT]):
                text = str(config) if len(configs) > 1 else ""
                self._variant, self._key = (text, index, len(configs)), tuple(tuner.keys or ())
                if config.pre_hook is not None:
                    config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
                launched = tuner.fn.run(*args, **kwargs, **config.all_kwargs())
                tuner.best_config = tuner.configs[0] if result is None else tuner.best_config
                result = launched if result is None else result
        finally:
            self._variant, self._key = before
        return result

    def _binder(self, function: JITFunction[Any]) -> Any:
        if id(function) not in self._binders:
            *_, backend, binder = function.create_binder()
            self._binders[id(function)] = backend, binder, function
        return self._binders[id(function)][:2]

    def _argument(self, value: Any) -> Any:
        """`value` with pointers in place of tensors, for the JIT's eyes."""
        if isinstance(value, torch.Tensor):
            return Pointer(value, value, self.storages.address(value))
        kind = type(value).__name__
        if kind == "TensorWrapper":
            return Pointer(value, value.base, self.storages.address(value.base))
        if kind == "TensorDescriptor":
            described = copy.copy(value)
            described.base = self._argument(value.base)
            described._leadline_original = value  # pyright: ignore[reportAttributeAccessIssue]
            return described
        if isinstance(value, tuple):
            converted = [self._argument(v) for v in value]
            return type(value)(*converted) if hasattr(value, "_fields") else tuple(converted)
        return value

    def _grid(self, name: str, grid: Any, values: dict[str, Any], place: str) -> tuple[int, int, int]:
        try:
            extents: Any = grid(values) if callable(grid) else grid
            sizes = [int(n) for n in ((extents,) if isinstance(extents, int) else extents)]
        except KernelError:
            raise
        except (TypeError, KeyError, ValueError, ZeroDivisionError) as error:
            raise KernelError(f"the grid of kernel {name} raised {type(error).__name__}: {one_line(error)}", where=place) from None
        if not 1 <= len(sizes) <= 3:
            raise KernelError(f"the grid of kernel {name} has {len(sizes)} axes", where=place, remedy="a grid has one to three")
        padded = [*sizes, 1, 1]
        return padded[0], padded[1], padded[2]

    def _describe(self, name: str, kind: Any, entry: Any, value: Any, function: JITFunction[Any]) -> Argument:
        declared = next(p.is_constexpr for p in function.params if p.name == name)
        base = getattr(value, "base", value)
        if isinstance(base, torch.Tensor) and not declared:
            spec = self.storages.spec(base)
            if base is not value and isinstance(kind, str) and kind.startswith("*"):
                spec = msgspec.structs.replace(spec, dtype=kind[1:].removeprefix("k"))  # reinterpreted as another element type
            return Argument(name=name, type=str(kind), tensor=spec, divisible=_divisible(entry))
        constexpr = kind == "constexpr"
        return Argument(
            name=name, type=str(kind), value=constant_text(value), constexpr=constexpr, folded=constexpr and not declared,
            divisible=_divisible(entry),
        )  # fmt: skip


def constant_text(value: Any) -> int | float | bool | str | None:
    """A scalar as it is; anything else that can be a constexpr as text: "tl.float16", "jit:<module>:<name>", "tuple:(1, 2)"."""
    if isinstance(value, tl.constexpr):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tl.dtype):
        return _dtype_text(value)
    if isinstance(value, torch.dtype):
        return str(value)
    inner = value
    while inner is not None and not inspect.isfunction(inner):
        inner = getattr(inner, "fn", None)
    if inner is not None:
        return f"jit:{original_path(inner.__code__.co_filename)}:{inner.__name__}"
    if isinstance(value, (tuple, list)):
        return f"tuple:{tuple(constant_text(v) for v in value)!r}"
    with contextlib.suppress(Exception):
        return value.__index__()
    return repr(value)[:200]


def _dtype_text(value: Any) -> str:
    for name in dir(tl):
        if isinstance(getattr(tl, name), tl.dtype) and getattr(tl, name) == value:
            return f"tl.{name}"
    return f"tl.{value}"


def _scalar(value: Any) -> int | float | bool | str | None:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _original(value: Any) -> Any:
    if isinstance(value, Pointer):
        return value.tensor
    if isinstance(value, tuple):
        converted = [_original(v) for v in value]
        return type(value)(*converted) if hasattr(value, "_fields") else tuple(converted)
    return getattr(value, "_leadline_original", value)


def _divisible(entry: Any) -> int:
    attributes = entry[1] if isinstance(entry, tuple) and len(entry) > 1 else None
    return 16 if isinstance(attributes, str) and "D" in attributes else 1


def _definition(function: JITFunction[Any]) -> tuple[str, int]:
    """File as loaded and line of `def`."""
    offset = next((i for i, text in enumerate(function.raw_src) if text.lstrip().startswith("def ")), 0)
    return function.fn.__code__.co_filename, function.starting_line_number + offset

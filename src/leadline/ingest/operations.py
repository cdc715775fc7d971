"""What a wrapper does on the host while it is traced: torch operations, reads of device data. Workers only: imports torch."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from leadline.execution.frames import calling_frame
from leadline.ingest.tensors import KNOWN_LIMIT, KnownValues, Storages, is_fake
from leadline.model import HostOp

ASSUMPTIONS = 16  # unknown values answered in one trace
REAL_LIMIT = 256 << 20  # bytes that a run with real data may allocate, counting what it frees again
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
_NAMES = {"zeros_like": "zeros", "new_zeros": "zeros", "ones_like": "ones", "full_like": "full", "new_full": "full"}
_WRITE_ONLY = {"copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_CUDA = torch.device("cuda", 0)


class UnknownValue(Exception):
    """The wrapper needs data that only a run on real data would give. `line` is in the case file."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.what, self.line = what, line


class TooLarge(Exception):
    """A run with real data would need more memory than it is allowed."""


class FakeMode(FakeTensorMode):
    """Fake tensors that never touch a device, also where one is present."""

    @property
    def avoid_device_init(self) -> bool:
        return True


class Operations(TorchDispatchMode):
    """Records operations, keeps the values of small tensors, and answers reads of data."""

    def __init__(self, file: str, storages: Storages, values: KnownValues, *, fake: FakeMode | None) -> None:
        super().__init__()
        self.file, self.storages, self.values, self.fake = file, storages, values, fake
        self.recording = False
        self.launches = 0  # so far
        self.host_ops: list[HostOp] = []
        self.reads: list[HostOp] = []
        self.assumptions: list[str] = []
        self.assumed_count = 0  # what an unknown count is taken to be in launch
        self.zero_in_inputs = False  # whether make_inputs may read zero where a value is unknown
        self.allocated = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.rpartition("::")[2]
        if self.fake is not None and getattr(kwargs.get("device"), "type", "") == "meta":
            kwargs["device"] = _CUDA  # the stand-in device guard answers "meta" for a device without an index
        if name == "_local_scalar_dense":
            return self._scalar(func, args[0])
        out = self._run_fake(func, name, args, kwargs) if self.fake is not None else self._run_real(func, name, args, kwargs)
        self._note(func, name, args, kwargs, out)
        return out

    def read(self, tensor: torch.Tensor, name: str) -> None:
        """Record that the host reads `tensor`, when it lives on the device."""
        if self.recording and (self.fake is None or tensor.device.type != "cpu"):
            self.reads.append(HostOp(name=name, line=self.line(), reads=(self.storages.number(tensor),),
                                     bytes=tensor.numel() * tensor.element_size(), order=self.launches))  # fmt: skip

    def known(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The data of `tensor`; raises UnknownValue when there is none."""
        value = tensor if self.fake is None else self.values.of(tensor)
        if value is None:
            line = self.line()
            raise UnknownValue(f"line {line} reads values that a kernel or a large tensor holds ({name})", line)
        return value

    def line(self) -> int:
        """The line of the case file (or of user code below it) that is running."""
        frame = calling_frame(self.file)
        return frame.f_lineno if frame else 0

    def _scalar(self, func: Any, tensor: torch.Tensor) -> Any:
        self.read(tensor, "item")
        if self.fake is None:
            return func(tensor)
        value = self.values.of(tensor)
        if value is not None:
            with _disable_current_modes():
                return value.item()
        # Inputs must be what they are; and a loop that waits for a value would never end on an assumed one.
        if not self.recording and self.zero_in_inputs and len(self.assumptions) < ASSUMPTIONS:
            self.assumptions.append(f"line {self.line()} of make_inputs reads random data; taken as 0")
            return False if tensor.dtype == torch.bool else 0.0 if tensor.dtype.is_floating_point else 0
        if not self.recording or tensor.dtype.is_floating_point or tensor.dtype.is_complex or len(self.assumptions) >= ASSUMPTIONS:
            self.known(tensor, "item")
        answer = False if tensor.dtype == torch.bool else self.assumed_count
        why = "" if tensor.dtype == torch.bool else " (elements of the largest input)"
        self.assumptions.append(f"line {self.line()} reads a value that a kernel computes; taken as {answer}{why}")
        return answer

    def _run_fake(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            return self._dynamic(func, name, args, kwargs)
        results = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, torch.Tensor)]
        small = name not in _EMPTY and sum(r.numel() for r in results if not _is_view(func)) <= KNOWN_LIMIT
        value = self.values.compute(func, args, kwargs) if small else None
        if value is None or not self.values.attach(out, value):
            for written in _written(func, args, kwargs):
                self.values.forget(written)
        return out

    def _dynamic(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Results whose shape depends on data: from the known data, or, for nonzero alone, from the largest possible count."""
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        for leaf in leaves[:1]:
            self.read(leaf, name)
        device = next((leaf.device for leaf in leaves), torch.device("cpu"))
        value = self.values.compute(func, args, kwargs)
        if value is None:
            allowed = self.recording or self.zero_in_inputs
            if not allowed or len(self.assumptions) >= ASSUMPTIONS or name not in ("nonzero", "masked_select"):
                raise UnknownValue(f"line {self.line()} needs the data of a tensor for the shape of {name}", self.line())
            count = leaves[0].numel() if self.recording else 0
            self.assumptions.append(f"line {self.line()} has a result whose size depends on data ({name}); taken as {count}")
            if name == "nonzero":
                return torch.empty((count, leaves[0].dim()), dtype=torch.int64, device=device)
            return torch.empty((count,), dtype=leaves[0].dtype, device=device)

        def fake(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
            self.values.set(made, leaf)
            return made

        return tree_map(fake, value)

    def _run_real(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        inputs = {t.untyped_storage()._cdata for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)}
        for leaf in tree_flatten(out)[0]:
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in inputs:
                self.allocated += leaf.untyped_storage().nbytes()
                if name in _EMPTY:
                    leaf.zero_()  # no kernel runs: what it would write has a defined value
        if self.allocated > REAL_LIMIT:
            raise TooLarge
        return out

    def _note(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        inputs = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, torch.Tensor)]
        written = _written(func, args, kwargs)
        shared = {t.untyped_storage()._cdata for t in inputs}
        new = [t for t in outputs if t.untyped_storage()._cdata not in shared]
        short = "empty" if name in _EMPTY else _NAMES.get(name, name)
        for tensor in new:
            self.storages.made_by(tensor, short, [] if short in ("empty", "zeros", "ones", "full") else inputs)
        if not self.recording or name in ("lift_fresh", "detach", "alias"):
            return
        to_host = name == "_to_copy" and inputs and inputs[0].device.type == "cuda" and new and new[0].device.type == "cpu"
        if to_host:
            self.read(inputs[0], "cpu")
        view = not new and not written
        if short == "empty" or view:
            size, reads = 0, inputs if view else []
        else:
            reads = [t for t in inputs if t.numel() and not (name in _WRITE_ONLY and any(t is w for w in written))]
            if short in ("zeros", "ones", "full"):
                reads = []
            size = sum(t.numel() * t.element_size() for t in [*reads, *new, *written])
        numbers = self.storages.number
        self.host_ops.append(HostOp(
            name=short, line=self.line(), reads=tuple(dict.fromkeys(numbers(t) for t in reads)),
            writes=tuple(dict.fromkeys(numbers(t) for t in [*new, *written])), bytes=size, view=view, order=self.launches,
        ))  # fmt: skip


class HostFunctions(TorchFunctionMode):
    """Answers the methods that a dispatch mode never sees: addresses, lists, and what asks for the device by name."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        fake = self.operations.fake is not None
        if name == "__get__" and func is torch.Tensor.is_cuda.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return True if not fake else func(*args, **kwargs)
        if not fake:
            args, kwargs = tree_map(_to_cpu, args), tree_map(_to_cpu, kwargs)
        if name in _METHODS and args and isinstance(args[0], torch.Tensor):
            handled, answer = self._method(name, args, kwargs)
            if handled:
                return answer
        elif fake and name == "to":
            args, kwargs = tree_map(_with_index, args), tree_map(_with_index, kwargs)
        return func(*args, **kwargs)

    def _method(self, name: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
        tensor, operations = args[0], self.operations
        if name == "data_ptr":
            return True, operations.storages.address(tensor)
        if name == "cuda":
            return True, tensor if operations.fake is None else tensor.to(_CUDA)
        if name == "pin_memory":
            return True, tensor
        if name == "is_pinned":
            return True, False
        if name in ("record_stream", "share_memory_"):
            return True, None
        if not is_fake(tensor):
            return False, None
        operations.read(tensor, "numpy")
        value = operations.known(tensor, name)
        with _disable_current_modes():
            return True, value.numpy()


@contextlib.contextmanager
def lists_at_once(operations: Operations) -> Iterator[None]:
    """Within the block `tolist` of a fake tensor is one read; its own goes element by element, for hours when there are many."""

    def tolist(tensor: torch.Tensor) -> Any:
        operations.read(tensor, "tolist")
        value = operations.known(tensor, "tolist")
        with _disable_current_modes():
            return value.tolist()

    with mock.patch.object(FakeTensor, "tolist", tolist):
        yield


_METHODS = {"data_ptr", "cuda", "pin_memory", "is_pinned", "record_stream", "share_memory_", "numpy", "__array__"}


def _with_index(leaf: Any) -> Any:
    if isinstance(leaf, str) and leaf == "cuda":
        return _CUDA
    return _CUDA if isinstance(leaf, torch.device) and leaf.type == "cuda" else leaf


def _to_cpu(leaf: Any) -> Any:
    if isinstance(leaf, str) and (leaf == "cuda" or leaf.startswith("cuda:")):
        return "cpu"
    return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == "cuda" else leaf


def _is_view(func: Any) -> bool:
    return bool(getattr(func, "is_view", False))


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that the operation's schema declares written."""
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]
    return found

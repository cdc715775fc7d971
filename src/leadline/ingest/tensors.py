"""Tensors of a dry run: their description, their storages, and the values of the small ones. Workers only: imports torch."""

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from leadline.model import TensorSpec

TRITON_NAMES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "int8": "i8", "uint8": "u8", "int16": "i16",
    "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64", "bool": "i1", "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5", "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16", "complex64": "c64", "complex128": "c128",
}  # fmt: skip

KNOWN_LIMIT = 1 << 17  # elements; values of larger tensors are not followed
_BASE = 0x7F00_0000_0000  # addresses are made up; a device's allocator aligns every storage to 512 bytes
_ORIGIN_LIMIT = 80


def triton_name(dtype: torch.dtype) -> str:
    """Triton's short name of a torch dtype: torch.float16 -> "fp16"."""
    name = str(dtype).removeprefix("torch.")
    return TRITON_NAMES.get(name, name)


class Storages:
    """Numbers storages in order of appearance, remembers who made them, and keeps them alive so that numbers stay unique."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self.origins: dict[int, str] = {}

    def number(self, tensor: torch.Tensor) -> int:
        """The number of the tensor's storage; tensors that share memory share it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._kept.append(storage)
        return self._numbers[key]

    def made_by(self, tensor: torch.Tensor, operation: str, sources: list[torch.Tensor]) -> None:
        """Remember that `operation` on `sources` made the storage of `tensor` (the first maker counts)."""
        number = self.number(tensor)
        if number not in self.origins:
            source = self.origins.get(self.number(sources[0]), "") if len(sources) == 1 else ""
            text = f"{operation}({source})" if source else operation
            self.origins[number] = text if len(text) <= _ORIGIN_LIMIT else operation

    def address(self, tensor: torch.Tensor) -> int:
        """A made-up device address whose alignment is what the real one's would be."""
        return _BASE + (self.number(tensor) << 36) + int(tensor.storage_offset()) * tensor.element_size()

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        """The record that describes `tensor`."""
        number = self.number(tensor)
        return TensorSpec(
            dtype=triton_name(tensor.dtype), shape=tuple(int(n) for n in tensor.shape), strides=tuple(int(n) for n in tensor.stride()),
            storage=number, offset=int(tensor.storage_offset()) * tensor.element_size(),
            storage_bytes=int(tensor.untyped_storage().nbytes()), origin=self.origins.get(number, ""),
        )  # fmt: skip


class KnownValues:
    """Real CPU data behind fake tensors that are small and computed from known ones, so that `.item()` has an answer."""

    def __init__(self) -> None:
        self._stale: set[int] = set()
        self._kept: list[Any] = []

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The data of `tensor` when it is known, else None."""
        value = getattr(tensor, "_leadline_value", None)
        if value is None and not is_fake(tensor):
            return tensor if tensor.numel() <= KNOWN_LIMIT and tensor.device.type == "cpu" else None
        return None if value is None or tensor.untyped_storage()._cdata in self._stale else value

    def set(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Say what data `tensor` holds."""
        tensor._leadline_value = value  # pyright: ignore[reportAttributeAccessIssue]

    def forget(self, tensor: torch.Tensor) -> None:
        """The storage of `tensor` was written with unknown data."""
        storage = tensor.untyped_storage()
        self._stale.add(storage._cdata)
        self._kept.append(storage)  # the number may not be used again

    def compute(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """The result of `operation` on the known data of its arguments (written arguments change too), or None when one is unknown."""
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        if any(self.of(leaf) is None for leaf in leaves):
            return None
        def real(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self.of(leaf)
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        try:
            with _disable_current_modes():
                return operation(*tree_map(real, args), **tree_map(real, kwargs))
        except Exception:
            return None

    def attach(self, fakes: Any, values: Any) -> bool:
        """Pair the results of a fake and a real execution; False when they do not correspond."""
        left, right = tree_flatten(fakes)[0], tree_flatten(values)[0]
        if len(left) != len(right):
            return False
        for fake, value in zip(left, right, strict=True):
            if isinstance(fake, torch.Tensor) and isinstance(value, torch.Tensor):
                if fake.shape != value.shape:
                    return False
                if is_fake(fake):
                    self.set(fake, value)
        return True


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether `tensor` has no data."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)

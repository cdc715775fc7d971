"""Compare outputs with an oracle: tolerances, structure, errors, copies that keep aliasing. Runs in workers."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from leadline.verify.records import Tolerances

DEFAULT = {
    torch.float64: (1e-5, 2**-13),
    torch.float32: (1e-5, 2**-13),
    torch.float16: (1e-3, 2**-10),
    torch.bfloat16: (1e-2, 2**-7),
}
_EXACT = (0.0, 0.0)
_LOW = (2e-2, 2**-3)  # eight-bit floats


class Difference(NamedTuple):
    """One output against its oracle. `excess` is the largest error in units of the tolerance; at most 1 passes."""

    index: int
    excess: float
    max_error: float
    position: tuple[int, ...]
    got: float
    expected: float
    rms: float
    scale: float  # root mean square of the oracle
    problem: str = ""  # shape, type or NaN problems, which no tolerance excuses


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a nest of tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def leaves(value: Any) -> list[Any]:
    """Tensors and numbers of an output, in order; None and containers disappear."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def copy_tree(value: Any, storages: dict[int, torch.UntypedStorage] | None = None) -> Any:
    """A deep copy in which tensors that share memory still do; strides and offsets are kept."""
    storages = {} if storages is None else storages
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            return value.clone()
        storage = value.untyped_storage()
        key = storage.data_ptr() or id(storage)
        if key not in storages:
            storages[key] = storage.clone()
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(storages[key], value.storage_offset(), value.size(), value.stride())
        return copy.requires_grad_(value.requires_grad) if value.requires_grad and value.is_leaf else copy
    if isinstance(value, dict):
        return {name: copy_tree(item, storages) for name, item in value.items()}
    if isinstance(value, tuple):
        items = [copy_tree(item, storages) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [copy_tree(item, storages) for item in value]
    return value


def overwrite(target: Any, source: Any) -> None:
    """Give the tensors of `target` the bytes of those of `source`, whose shapes and strides are the same."""
    for old, new in zip(tensors(target), tensors(source), strict=True):
        if old.layout == torch.strided and old.device.type != "meta":
            old.untyped_storage().copy_(new.untyped_storage())


def shares_memory(first: Any, second: Any) -> bool:
    """Whether a tensor of one nest lies in the storage of a tensor of the other."""
    held = {t.untyped_storage().data_ptr() for t in tensors(first) if t.numel()}
    return any(t.untyped_storage().data_ptr() in held for t in tensors(second) if t.numel())


def alike(first: Any, second: Any) -> bool:
    """Whether two nests of inputs differ in the values of their tensors only, so that one can take the other's place in memory."""
    a, b = list(tensors(first)), list(tensors(second))
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and x.layout == y.layout == torch.strided and x.stride() == y.stride()
        and x.storage_offset() == y.storage_offset() and x.untyped_storage().nbytes() == y.untyped_storage().nbytes()
        for x, y in zip(a, b, strict=True)
    )  # fmt: skip


def changed(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """Names of inputs whose bytes differ; a NaN equals itself."""
    names = []
    for name, old in before.items():
        pairs = zip(tensors(old), tensors(after.get(name)), strict=False)
        if any(not _same_bytes(a, b) for a, b in pairs):
            names.append(name)
    return tuple(names)


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    a, b = a.detach().contiguous(), b.detach().contiguous()
    return bool((a.reshape(-1).view(torch.uint8) == b.reshape(-1).view(torch.uint8)).all())


def same(first: Any, second: Any) -> bool:
    """Bitwise equality of two outputs."""
    a, b = leaves(first), leaves(second)
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if not _same_bytes(x, y):
                return False
        elif type(x) is not type(y) or (x != y and not (x != x and y != y)):
            return False
    return True


def tolerance_of(declared: Any, index: int, dtype: torch.dtype) -> tuple[float, float]:
    """(atol, rtol) of output `index`: from TOLERANCE (a dict, a list per output, or a dict per type name), else by type."""
    default = DEFAULT.get(dtype, _LOW if dtype.is_floating_point else _EXACT)
    if dtype.is_complex:
        default = DEFAULT[torch.float32]
    if isinstance(declared, (list, tuple)):
        declared = declared[index] if index < len(declared) else None
    if not isinstance(declared, dict) or not declared:
        return default
    if all(isinstance(item, dict) for item in declared.values()):
        declared = declared.get(str(dtype).removeprefix("torch."))
        if declared is None:
            return default
    return float(declared.get("atol", 0.0)), float(declared.get("rtol", 0.0))


def compare(got: Any, expected: Any, declared: Any) -> list[Difference]:
    """Each output against the oracle's. Structure, shape, type and the places of NaN and infinity must agree."""
    left, right = leaves(got), leaves(expected)
    if len(left) != len(right):
        text = f"{len(left)} outputs where {len(right)} are expected"
        return [Difference(0, math.inf, math.inf, (), 0.0, 0.0, math.inf, 0.0, text)]
    return [_compare_one(i, a, b, declared) for i, (a, b) in enumerate(zip(left, right, strict=True))]


def _compare_one(index: int, got: Any, expected: Any, declared: Any) -> Difference:
    def bad(text: str) -> Difference:
        return Difference(index, math.inf, math.inf, (), 0.0, 0.0, math.inf, 0.0, f"output {index} {text}")

    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        if isinstance(got, torch.Tensor) or isinstance(expected, torch.Tensor):
            if isinstance(got, torch.Tensor) and got.numel() != 1:
                return bad("is a tensor where a number is expected")
            if isinstance(expected, torch.Tensor) and expected.numel() != 1:
                return bad("is a number where a tensor is expected")
        elif not isinstance(got, (int, float)) or not isinstance(expected, (int, float)):
            return Difference(index, 0.0, 0.0, (), 0.0, 0.0, 0.0, 0.0) if got == expected else bad(f"is {got!r}, not {expected!r}")
        got, expected = torch.as_tensor(got).reshape(()), torch.as_tensor(expected).reshape(())
    if type(got) not in (torch.Tensor, torch.nn.Parameter):
        return bad(f"is a {type(got).__name__}, not a plain tensor")
    if got.shape != expected.shape:
        return bad(f"has shape {tuple(got.shape)}, not {tuple(expected.shape)}")
    if expected.dtype != got.dtype and expected.dtype != torch.float64:
        return bad(f"has type {_name(got)}, not {_name(expected)}")
    if got.numel() == 0:
        return Difference(index, 0.0, 0.0, (), 0.0, 0.0, 0.0, 0.0)
    atol, rtol = tolerance_of(declared, index, got.dtype)
    # float64 holds 32-bit integers exactly; 64-bit ones are compared as integers first
    if not (got.is_floating_point() or got.is_complex()) and bool((got == expected.to(got.device)).all()):
        return Difference(index, 0.0, 0.0, (), 0.0, 0.0, 0.0, _rms(_wide(expected)))
    a, b = _wide(got), _wide(expected).to(got.device)
    equal = (a == b) | (torch.isnan(a) & torch.isnan(b))
    error = torch.where(equal, torch.zeros_like(a), (a - b).abs())
    nan = torch.isnan(error)
    error = torch.where(nan, torch.full_like(error, math.inf), error)
    finite = torch.where(torch.isfinite(b), b, torch.zeros_like(b))
    allowed = atol + rtol * finite.abs()
    excess = torch.where(error == 0, torch.zeros_like(error), error / allowed)  # exact types: x / 0 = inf
    worst = int(torch.argmax(excess))
    position = _unravel(worst, tuple(got.shape))
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    return Difference(
        index, float(excess.reshape(-1)[worst]), float(error.reshape(-1)[worst]), position, float(flat_a[worst]), float(flat_b[worst]),
        _rms(error), _rms(finite),
    )  # fmt: skip


def _wide(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    if value.is_complex():
        return torch.view_as_real(value).to(torch.float64)
    return value.to(torch.float32).to(torch.float64) if value.element_size() == 1 and value.is_floating_point() else value.to(torch.float64)


def _rms(value: torch.Tensor) -> float:
    return float(value.square().mean().sqrt()) if value.numel() else 0.0


def _name(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    position = []
    for extent in reversed(shape):
        position.append(flat % extent)
        flat //= extent
    return tuple(reversed(position))


def worst(differences: list[Difference]) -> Difference | None:
    """The difference that exceeds its tolerance most."""
    return max(differences, key=lambda d: d.excess, default=None)


def describe(difference: Difference) -> str:
    """One phrase: the largest error, where, and both values."""
    if difference.problem:
        return difference.problem
    at = ", ".join(map(str, difference.position))
    return (
        f"max error {difference.max_error:.3g} at output {difference.index}[{at}] "
        f"(got {difference.got:.6g}, expected {difference.expected:.6g}, {difference.excess:.3g} times the tolerance)"
    )


def less_accurate(candidate: list[Difference], original: list[Difference], outputs: list[Any], limits: Tolerances) -> str:
    """Why the candidate's error is out of proportion to the original's, or "". `outputs` are the candidate's leaves."""
    for new, old, value in zip(candidate, original, outputs, strict=False):
        if not isinstance(value, torch.Tensor) or not math.isfinite(new.rms) or not math.isfinite(old.rms):
            continue
        allowance = _allowance(value.dtype) * (new.scale if value.is_floating_point() else 1.0) * limits.floor
        if new.rms > limits.factor * old.rms + allowance:
            return f"output {new.index}: error (rms) {new.rms:.3g} where the original's is {old.rms:.3g}"
    return ""


def _allowance(dtype: torch.dtype) -> float:
    """Relative rms error that another order of summation may add: 32 ulp in 32 bits, half an ulp in 16, one flip in 100 in integers."""
    if not dtype.is_floating_point:
        return 0.1
    eps = torch.finfo(dtype).eps
    return 32 * eps if eps < 1e-4 else 0.5 * eps

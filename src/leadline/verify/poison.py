"""Freshly allocated memory filled with a value no kernel would write, so that elements left unwritten show. Runs in workers."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Integers stay small: a wrapper that reads one as a size must not ask for terabytes.
_INTEGERS = (113, 77)
_FLOATS = (float("nan"), -12345.0)
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}


def fill(tensor: torch.Tensor, variant: int) -> None:
    """Overwrite `tensor` with the poison of `variant` (0 or 1; the second catches what happens to agree with the first)."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return
    if tensor.is_complex():
        torch.view_as_real(tensor).fill_(_FLOATS[variant])
    elif tensor.dtype == torch.bool:
        tensor.fill_(variant == 0)
    elif tensor.is_floating_point():
        if tensor.element_size() == 1:
            tensor.view(torch.uint8).fill_((0x7F, 0x55)[variant])
        else:
            tensor.fill_(_FLOATS[variant])
    else:
        tensor.fill_(_INTEGERS[variant])


class Poisoned(TorchDispatchMode):
    """Within this context every uninitialised allocation, also one made inside other functions, is filled with poison.

    `allocated` keeps all tensors made here alive, so that no freed block can hand back an earlier right answer.
    """

    def __init__(self, variant: int = 0, *, keep: bool = True) -> None:
        super().__init__()
        self.variant, self.keep = variant, keep
        self.allocated: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else ""
        if isinstance(result, torch.Tensor):
            if name in _EMPTY and result.layout == torch.strided:
                fill(result, self.variant)
            if self.keep and result.device.type != "meta":
                self.allocated.append(result)
        return result

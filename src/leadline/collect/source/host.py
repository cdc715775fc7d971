"""The vocabulary of the host side: which torch call is which kind of host call."""

import ast

METHODS: dict[str, str] = {
    "item": "sync", "tolist": "sync", "cpu": "sync", "numpy": "sync", "nonzero": "sync", "unique": "sync", "masked_select": "sync",
    "clone": "copy", "copy_": "copy", "repeat": "copy", "repeat_interleave": "copy", "cuda": "copy",
    "float": "cast", "half": "cast", "bfloat16": "cast", "double": "cast", "type": "cast", "type_as": "cast", "int": "cast", "long": "cast",
    "bool": "cast", "to": "cast", "contiguous": "contiguous",
    "permute": "view", "transpose": "view", "t": "view", "view": "view", "reshape": "view", "expand": "view", "expand_as": "view",
    "unsqueeze": "view", "squeeze": "view", "movedim": "view", "flatten": "view", "unflatten": "view", "narrow": "view", "chunk": "view",
    "unbind": "view", "as_strided": "view", "swapaxes": "view", "view_as": "view", "select": "view",
    "zero_": "alloc_zeros", "fill_": "alloc_zeros", "new_zeros": "alloc_zeros", "new_ones": "alloc_zeros", "new_full": "alloc_zeros",
    "new_empty": "alloc_empty",
    "sum": "reduce", "mean": "reduce", "max": "reduce", "min": "reduce", "amax": "reduce", "amin": "reduce", "any": "reduce",
    "all": "reduce", "argmax": "reduce", "argmin": "reduce", "prod": "reduce", "norm": "reduce", "var": "reduce", "std": "reduce",
}  # fmt: skip

FUNCTIONS: dict[str, str] = {
    "zeros": "alloc_zeros", "zeros_like": "alloc_zeros", "ones": "alloc_zeros", "ones_like": "alloc_zeros", "full": "alloc_zeros",
    "full_like": "alloc_zeros", "empty": "alloc_empty", "empty_like": "alloc_empty", "empty_strided": "alloc_empty",
    "cat": "copy", "concat": "copy", "stack": "copy", "pad": "copy", "clone": "copy", "tile": "copy", "hstack": "copy", "vstack": "copy",
    "repeat_interleave": "copy", "synchronize": "sync", "nonzero": "sync", "unique": "sync", "masked_select": "sync",
}  # fmt: skip

# torch functions that touch no data.
SILENT = (
    "device", "dtype", "Size", "finfo", "iinfo", "is_tensor", "manual_seed", "no_grad",
    "Generator", "promote_types", "is_floating_point",
    "get_device_properties", "current_device", "get_device_capability", "current_stream", "Stream", "Event", "result_type",
    "inference_mode", "empty_cache", "device_count", "is_available", "get_device_name", "save_for_backward",
)  # fmt: skip
REDUCE = tuple(name for name, kind in METHODS.items() if kind == "reduce")
# Attributes and methods that only tensors have.
TENSOR_MARKS = ("shape", "dtype", "stride", "device", "numel", "contiguous", "is_contiguous", "data_ptr", "element_size", "size", "dim",
                "ndim")  # fmt: skip
# Methods that return plain Python values although the receiver is a tensor.
PLAIN = ("stride", "numel", "size", "dim", "item", "tolist", "element_size", "data_ptr", "is_contiguous", "storage_offset", "numpy")


def kind_of(path: str, method: str, call: ast.Call, text: str) -> str:
    """Kind of a call by its resolved function path ("torch.zeros", "") and its method name; "" when it does not matter."""
    if path.startswith("torch."):
        name = path.rsplit(".", 1)[-1]
        if name in SILENT:
            return ""
        return FUNCTIONS.get(name) or ("reduce" if name in REDUCE else METHODS.get(name, "other"))
    kind = METHODS.get(method, "")
    if method == "to":
        return _conversion(call, text)
    if method == "float" and call.args:
        return ""
    return kind


def _conversion(call: ast.Call, text: str) -> str:
    """`.to(...)`: to the host, to another device, or to another dtype."""
    first = call.args[0] if call.args else None
    if any(isinstance(n, ast.Constant) and n.value == "cpu" for n in ast.walk(call)):
        return "sync"
    named = {k.arg for k in call.keywords}
    if "dtype" in named or "dtype" in text or "torch." in text:
        return "cast"
    if "device" in named or (first is not None and ("device" in ast.unparse(first) or isinstance(first, ast.Constant))):
        return "copy"
    return "cast"

"""Time of one call of the wrapper: its launches, its torch operations, and what the host adds. Predicted, for ranking."""

from leadline.model import HostOp, Launch, TensorSpec
from leadline.rules.base import View

SYNC_US = (15.0, 150.0)  # a device-to-host copy with its wait, up to one followed by Python work on the values
UPLOAD_US = (8.0, 30.0)  # a host list made into a device tensor
LAUNCH_US = (2.5, 5.0)  # host time of one launch through the JIT's cache
TORCH_OP_US = 3.0  # a torch operation that launches a kernel
COPIES = ("clone", "_to_copy", "contiguous", "copy", "cat", "stack", "constant_pad_nd", "pad", "repeat", "index_select", "roll", "flip")


def bandwidth(view: View) -> float:
    """Bytes per microsecond between kernels and DRAM."""
    return (view.ceilings.copy_bytes_per_s if view.ceilings else 4.0e12) / 1e6


def launches_us(view: View) -> float:
    """Device time of all launches of one call."""
    return sum(view.time_us(x.index) * x.repeats for x in view.launches)


def host_op_us(view: View, op: HostOp) -> float:
    """Device time of one torch operation (0 for a view)."""
    return 0.0 if op.view else TORCH_OP_US + op.bytes / bandwidth(view)


def call_us(view: View) -> float:
    """Device time of one call: launches and torch operations."""
    ops = view.trace.host_ops if view.trace else ()
    return launches_us(view) + sum(host_op_us(view, op) for op in ops)


def plain_name(op: HostOp) -> str:
    """The operation's name without namespace, overload and in-place underscore: "aten.copy_.default" -> "copy"."""
    parts = [p for p in op.name.replace("::", ".").split(".") if p not in ("aten", "default", "Tensor", "out")]
    name = parts[0] if parts else op.name
    return name if name in COPIES else name.rstrip("_")


def is_copy(op: HostOp) -> bool:
    """Whether the operation only moves, casts or pads data."""
    return not op.view and plain_name(op) in COPIES


def tensor_bytes(tensor: TensorSpec) -> float:
    """Bytes of distinct elements (a broadcast axis counts once)."""
    n = 1
    for extent, stride in zip(tensor.shape, tensor.strides, strict=True):
        n *= extent if stride else 1
    return float(n * tensor.itemsize)


def written(view: View, launch: Launch) -> dict[int, str]:
    """Storages that the launch stores to, with the parameter's name."""
    return _touched(view, launch, ("store", "atomic", "descriptor_store"))


def read(view: View, launch: Launch) -> dict[int, str]:
    """Storages that the launch loads from, with the parameter's name."""
    return _touched(view, launch, ("load", "descriptor_load"))


def _touched(view: View, launch: Launch, kinds: tuple[str, ...]) -> dict[int, str]:
    facts = view.kernel(launch)
    names: set[str] | None = None
    if facts is not None and all(a.base for a in facts.accesses):
        names = {a.base for a in facts.accesses if a.kind.startswith(kinds) and a.base}
        # A pointer handed to another kernel function may be used either way there.
        if facts.calls:
            mentioned = {a.base for a in facts.accesses}
            names |= {a.name for a in launch.arguments if a.tensor is not None and a.name not in mentioned}
    found: dict[int, str] = {}
    for argument in launch.arguments:
        if argument.tensor is not None and (names is None or argument.name in names):
            found.setdefault(argument.tensor.storage, argument.name)
    return found


def specs(view: View) -> dict[int, TensorSpec]:
    """The largest tensor argument seen on each storage."""
    found: dict[int, TensorSpec] = {}
    for launch in view.launches:
        for argument in launch.arguments:
            if argument.tensor is not None:
                known = found.get(argument.tensor.storage)
                if known is None or argument.tensor.numel > known.numel:
                    found[argument.tensor.storage] = argument.tensor
    return found

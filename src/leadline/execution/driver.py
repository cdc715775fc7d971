"""A stand-in for Triton's driver: the JIT specialises, warms up and compiles for a target that need not be present. Workers only."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from leadline.errors import EvidenceError
from leadline.execution.target import Target, parse_target

# What wrappers ask a driver about a device: streaming multiprocessors, shared memory of a block (bytes), registers of an SM.
_PROPERTIES = {
    "cuda:70": (80, 98304), "cuda:75": (72, 65536), "cuda:80": (108, 166912), "cuda:86": (84, 101376), "cuda:87": (16, 166912),
    "cuda:89": (142, 101376), "cuda:90": (132, 232448), "cuda:100": (148, 232448), "cuda:103": (160, 232448), "cuda:110": (20, 232448),
    "cuda:120": (188, 101376), "cuda:121": (48, 101376), "hip:gfx90a": (110, 65536), "hip:gfx942": (304, 65536),
    "hip:gfx950": (256, 163840),
}  # fmt: skip


def device_properties(target: Target) -> dict[str, int]:
    """The properties of a typical device of this target, under the names of Triton's `driver.active.utils.get_device_properties`."""
    processors, memory = _PROPERTIES.get(target.name, (64, 65536))
    return {"multiprocessor_count": processors, "max_shared_mem": memory, "max_num_regs": 65536, "warpSize": target.warp_size,
            "sm_clock_rate": 1_755_000, "mem_clock_rate": 2_619_000, "mem_bus_width": 5120}  # fmt: skip


class StandInDriver:
    """Answers what `warmup`, specialisation and wrappers ask; raises where a real device would be needed."""

    def __init__(self, target: Target) -> None:
        from triton.backends.compiler import GPUTarget

        if target.backend not in ("cuda", "hip"):
            remedy = "use the interpreter that has its compiler"
            raise EvidenceError(f"the installed triton does not compile for {target.name}", remedy=remedy)
        self.target = target
        self._gpu_target = GPUTarget(target.backend, target.arch, target.warp_size)
        self.utils = SimpleNamespace(get_device_properties=lambda device: device_properties(target))
        self.binary_ext = "cubin" if target.backend == "cuda" else "hsaco"

    def get_current_target(self) -> Any:
        return self._gpu_target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        return None

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self.target.arch, 10) if isinstance(self.target.arch, int) else (9, 4)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Any:
        def refuse(*_: object, **__: object) -> None:
            raise EvidenceError("there is no device to time on")

        return refuse

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "int"

    @staticmethod
    def is_active() -> bool:
        return True


def install(target: str) -> StandInDriver:
    """Make a stand-in for `target` the active driver of this process and return it."""
    from triton.runtime.driver import driver

    made = StandInDriver(parse_target(target))
    driver.set_active(made)  # pyright: ignore[reportArgumentType]
    return made


@contextlib.contextmanager
def standing_in(target: str) -> Iterator[StandInDriver]:
    """The stand-in as active driver for the length of a `with` block."""
    from triton.runtime.driver import driver

    before = driver._active
    try:
        yield install(target)
    finally:
        driver._active = before

"""torch.cuda as a wrapper sees it on a machine with one device, on a machine with none. Workers only: imports torch."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from leadline.execution.driver import device_properties
from leadline.execution.target import Target

_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA, _META, _KINDS = 1, 14, 21  # c10::DeviceType


def allow_fake_cuda() -> bool:
    """Make fake tensors on "cuda" usable in a torch built without CUDA; True when they are.

    Such a build has no device guard for CUDA, and indexing and `.to` ask for one. The guard of the meta device does nothing,
    which is what a fake tensor needs, so it is entered for CUDA as well.
    """
    if torch.backends.cuda.is_built():
        return True
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        guards = (ctypes.c_void_p * _KINDS).in_dll(library, _GUARDS)
    except (OSError, ValueError):
        return False
    if not guards[_CUDA]:
        guards[_CUDA] = guards[_META]
    return bool(guards[_CUDA])


class _Block(contextlib.AbstractContextManager[Any]):
    """Stands for torch.cuda.device, torch.cuda.stream, a graph: a block in which nothing changes."""

    def __init__(self, *_: object, **__: object) -> None:
        self.idx = self.prev_idx = 0

    def __exit__(self, *_: object) -> None:
        return None


class _Stream(_Block):
    """Stands for torch.cuda.Stream and Event: every method does nothing."""

    cuda_stream, device_index, device = 0, 0, torch.device("cuda", 0)

    def elapsed_time(self, *_: object) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def record_event(self, *_: object) -> "_Stream":
        return self

    def _nothing(self, *_: object, **__: object) -> None:
        return None

    synchronize = record = wait = wait_event = wait_stream = _nothing


class _Generator(torch.Generator):
    """A generator of any device is one of the CPU."""

    def __new__(cls, device: object = "cpu") -> "_Generator":
        return super().__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]


@contextlib.contextmanager
def one_device(target: Target) -> Iterator[None]:
    """Within the block torch.cuda answers as if a typical device of `target` were there; nothing is launched or allocated."""
    known = device_properties(target)
    major, minor = divmod(target.arch, 10) if isinstance(target.arch, int) else (9, 4)
    properties = SimpleNamespace(
        name=f"typical {target.name}", major=major, minor=minor, total_memory=80 << 30, warp_size=target.warp_size,
        multi_processor_count=known["multiprocessor_count"], max_threads_per_multi_processor=2048, is_integrated=False,
        is_multi_gpu_board=False, regs_per_multiprocessor=65536, shared_memory_per_block=49152, L2_cache_size=50 << 20,
        shared_memory_per_block_optin=known["max_shared_mem"], shared_memory_per_multiprocessor=known["max_shared_mem"] + 1024,
        gcnArchName=str(target.arch), max_threads_per_block=1024,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "get_device_name": properties.name,
        "get_device_properties": properties, "get_device_capability": (major, minor), "synchronize": None, "empty_cache": None,
        "init": None, "_lazy_init": None, "set_device": None, "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0,
        "reset_peak_memory_stats": None, "mem_get_info": (80 << 30, 80 << 30), "is_bf16_supported": True, "manual_seed": None,
        "manual_seed_all": None, "is_current_stream_capturing": False, "set_stream": None,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, _constant(answer)))
        for name in ("device", "device_of", "stream", "graph"):
            stack.enter_context(mock.patch.object(torch.cuda, name, _Block))
        for name in ("Stream", "Event", "current_stream", "default_stream"):
            stack.enter_context(mock.patch.object(torch.cuda, name, _Stream))
        for name in ("range_push", "range_pop", "mark"):
            stack.enter_context(mock.patch.object(torch.cuda.nvtx, name, _constant(None)))
        stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
        yield


def _constant(value: Any) -> Any:
    return lambda *_, **__: value

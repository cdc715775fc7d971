"""The NVIDIA device behind the clock: stamps, flushes, ghosts. The only file of collect and verify that talks to torch.cuda.

Runs in device workers. Tests put a simulated device in its place.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import torch

from leadline.errors import EvidenceError

REMEDY = "run on a machine with a device"


def no_device() -> EvidenceError:
    """The error of every device function where there is none."""
    return EvidenceError("no CUDA device here", where="device timing", remedy=REMEDY)


class CudaDevice:
    """The current CUDA device. Times in microseconds; `now` in seconds of host time."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise no_device()
        properties = torch.cuda.get_device_properties(0)
        self.name: str = properties.name
        self.l2_bytes: int = int(getattr(properties, "L2_cache_size", 0) or 64 << 20)
        self.sms: int = properties.multi_processor_count
        self.properties = properties
        # More than twice the L2, so that nothing of the previous call survives; also long enough to hide the host's launch.
        self._buffer = torch.empty(max(256 << 20, 3 * self.l2_bytes) // 4, dtype=torch.int32, device="cuda")
        self._event = torch.cuda.Event  # taken before user code is imported
        self._sync = torch.cuda.synchronize
        self._clock = time.perf_counter
        self._sleep = getattr(torch.cuda, "_sleep", None)  # a spin of that many cycles; without it the flush alone covers the host
        self._mhz = float(getattr(properties, "clock_rate", 0) or 0) / 1e3

    def flush(self) -> None:
        self._buffer.zero_()

    def hold(self, us: float) -> None:
        """Keep the device busy for about so many microseconds without touching memory: the host prepares what is timed meanwhile."""
        if self._sleep is not None and us > 0:
            self._sleep(int(min(us, 20_000.0) * (self._mhz or 1500.0)))

    def event(self) -> Any:
        stamp = self._event(enable_timing=True)
        stamp.record()
        return stamp

    def elapsed_us(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) * 1e3

    def wait(self, event: Any) -> None:
        event.synchronize()

    def synchronize(self) -> None:
        self._sync()

    def now(self) -> float:
        return self._clock()

    def write_bytes_per_s(self) -> float:
        """Measured rate of filling the flush buffer."""
        best = 0.0
        for _ in range(5):
            self.flush()
            start = self.event()
            self.flush()
            end = self.event()
            self.synchronize()
            best = max(best, self._buffer.numel() * 4 / (self.elapsed_us(start, end) * 1e-6))
        return best

    def clocks_mhz(self) -> float:
        """SM clock now, 0.0 where NVML cannot be asked."""
        try:
            return float(torch.cuda.clock_rate())
        except Exception:
            return 0.0

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info()[0])


class Launches:
    """Hooks into the JIT's launch: counts launches, can drop them (ghosts), can stamp each (for a profile)."""

    def __init__(self) -> None:
        from triton.runtime.jit import JITFunction

        self.count, self.ghost = 0, False
        self.stamps: list[tuple[str, Any, Any]] | None = None
        self.device: Any = None
        original = JITFunction.run
        if getattr(original, "_leadline", None) is not None:
            raise RuntimeError("launches are hooked already")

        def run(jit: Any, /, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup:
                return original(jit, *args, grid=grid, warmup=warmup, **kwargs)
            self.count += 1
            if self.ghost:
                return None
            if self.stamps is None:
                return original(jit, *args, grid=grid, warmup=warmup, **kwargs)
            start = self.device.event()
            result = original(jit, *args, grid=grid, warmup=warmup, **kwargs)
            self.stamps.append((getattr(jit, "__name__", "kernel"), start, self.device.event()))
            return result

        run._leadline = self  # type: ignore[attr-defined]
        JITFunction.run = run  # type: ignore[method-assign]

    @contextlib.contextmanager
    def ghosts(self) -> Iterator[None]:
        """Launches do nothing inside."""
        self.ghost = True
        try:
            yield
        finally:
            self.ghost = False

    @contextlib.contextmanager
    def stamped(self, device: Any) -> Iterator[list[tuple[str, Any, Any]]]:
        """Every launch inside adds (kernel, start, end) to the list."""
        self.stamps, self.device = [], device
        try:
            yield self.stamps
        finally:
            self.stamps = None


_LAUNCHES: Launches | None = None


def launches() -> Launches:
    """The process's hook, installed at the first call."""
    global _LAUNCHES
    if _LAUNCHES is None:
        _LAUNCHES = Launches()
    return _LAUNCHES


def fresh_cache(folder: str) -> None:
    """Send this process's compile cache to an empty folder. Call before triton is imported, or at least before it compiles."""
    os.environ["TRITON_CACHE_DIR"] = folder
    with contextlib.suppress(Exception):
        from triton import knobs

        knobs.cache.dir = folder


def wake_driver() -> None:
    """Let triton build its glue to the driver, which an empty cache makes it do once, so that it is not taken for a kernel's compile."""
    with contextlib.suppress(Exception):
        from triton.runtime import driver

        active: Any = driver.active  # what a driver offers is declared by no base class
        active.utils.get_device_properties(active.get_current_device())

"""A device made of arithmetic: launches take the time they are told, on a clock that only they move."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any


class SimulatedDevice:
    """Times in microseconds. `work(us)` is a launch; work on a side stream is not seen by stamps but keeps the device busy."""

    name = "simulated"
    l2_bytes = 1 << 20

    def __init__(self, seed: int = 0, noise: float = 0.002) -> None:
        self.random, self.noise = random.Random(seed), noise
        self.host = self.stream = self.side = 0.0
        self.flushes = 0

    def work(self, us: float) -> None:
        self.host += 2.0
        self.stream = max(self.stream, self.host) + us * (1 + self.random.gauss(0, self.noise))

    def side_work(self, us: float) -> None:
        self.host += 2.0
        self.side = max(self.side, self.host) + us

    def flush(self) -> None:
        self.flushes += 1
        self.work(80.0)

    def hold(self, us: float) -> None:
        self.work(us)

    def event(self) -> float:
        self.host += 0.5
        self.stream = max(self.stream, self.host)
        return self.stream

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def wait(self, event: float) -> None:
        self.host = max(self.host, event)

    def synchronize(self) -> None:
        self.host = max(self.host, self.stream, self.side) + 1.0

    def now(self) -> float:
        return self.host * 1e-6

    def clocks_mhz(self) -> float:
        return 1000.0


class SimulatedMachine:
    """Programs are plain torch on the CPU; `count` is advanced by the program itself through `launched`."""

    device = "cpu"
    keep = False
    strict = False

    def __init__(self, device: SimulatedDevice) -> None:
        self._device, self.launched, self.ghost = device, 0, False

    def count(self) -> int:
        return self.launched

    @contextlib.contextmanager
    def ghosts(self) -> Iterator[None]:
        self.ghost = True
        try:
            yield
        finally:
            self.ghost = False

    def watch(self, inputs: Any, allocated: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def violation(self) -> str:
        return ""

    def synchronize(self) -> None:
        self._device.synchronize()

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from leadline.collect import timing  # noqa: E402
from leadline.collect.timing_request import ProfileRequest  # noqa: E402
from leadline.errors import EvidenceError, KernelError  # noqa: E402
from leadline.model import KernelCase, Profile  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent.parent / "verify"))

from simulated import SimulatedDevice  # noqa: E402

TEXT = """import torch

CASES = {"full": dict(n=8)}


def launch(x):
    return x + 1


def make_inputs(*, device, seed, n):
    return dict(x=torch.full((n,), float(seed), device=device))
"""


class Hook:
    """Stands for the JIT's hook: a launch is `run(name, us)`."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.stamps: list[Any] | None = None

    def run(self, name: str, us: float) -> None:
        start = self.device.event()
        self.device.work(us)
        if self.stamps is not None:
            self.stamps.append((name, start, self.device.event()))

    @contextlib.contextmanager
    def stamped(self, device: SimulatedDevice) -> Iterator[list[Any]]:
        self.stamps = []
        try:
            yield self.stamps
        finally:
            self.stamps = None


def request(folder: Path, text: str = TEXT, name: str = "full") -> ProfileRequest:
    path = folder / "kernel.py"
    path.write_text(text)
    return ProfileRequest(case=KernelCase(path=str(path), source=text, kernels=(), cases=("full",)), case_name=name, budget_s=0.005)


def test_each_launch_is_timed(tmp_path: Path) -> None:
    device = SimulatedDevice()
    hook = Hook(device)

    def call() -> None:
        hook.run("first", 30.0)
        hook.run("second", 70.0)

    found = timing.profile_on(device, hook, call, request(tmp_path))
    assert [launch.kernel for launch in found.launches] == ["first", "second"]
    assert found.launches[0].median_us == pytest.approx(30, rel=0.05)
    assert found.launches[1].median_us == pytest.approx(70, rel=0.05)
    assert all(launch.low_us <= launch.median_us <= launch.high_us for launch in found.launches)
    assert found.total_us == pytest.approx(100, rel=0.05)
    assert found.wall_us > found.total_us
    assert found.noise < 0.01
    assert isinstance(found, Profile)


def test_a_kernel_that_fails(tmp_path: Path) -> None:
    device = SimulatedDevice()

    def call() -> None:
        raise ValueError("no luck")

    with pytest.raises(KernelError) as caught:
        timing.profile_on(device, Hook(device), call, request(tmp_path))
    assert caught.value.what == "the kernel fails in case full: ValueError: no luck"


def test_the_wrapper_is_bound_to_its_inputs(tmp_path: Path) -> None:
    assert timing.prepare(request(tmp_path), "cpu")().tolist() == [1.0] * 8
    with pytest.raises(KernelError, match="no case 'absent'"):
        timing.prepare(request(tmp_path, name="absent"), "cpu")
    with pytest.raises(KernelError) as caught:
        timing.prepare(request(tmp_path, TEXT.replace("torch.full", "torch.fool")), "cpu")
    assert caught.value.what.startswith("make_inputs fails in case full: AttributeError: module 'torch' has no attribute 'fool'")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError) as caught:
        timing.profile(request(tmp_path))
    assert str(caught.value) == "device timing: no CUDA device here; run on a machine with a device"


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_ceilings_of_a_real_device(tmp_path: Path) -> None:
    from leadline.collect.device import CudaDevice

    device = CudaDevice()
    found = timing.ceilings(device, str(tmp_path))
    assert found.predicted is False
    assert 5e10 < found.copy_bytes_per_s < found.l2_bytes_per_s
    assert found.matmul_flops["bf16"] > found.matmul_flops["tf32"] > 1e12
    assert 0.5 < found.launch_us < 50
    assert timing.ceilings(device, str(tmp_path)) == found

"""Whether a device is there, and that it is used by one at a time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leadline.execution import device
from leadline.execution.device import device_present, exclusive_device

HOLDER = """
import sys, time
from leadline.execution.device import exclusive_device
with exclusive_device(sys.argv[1]):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("hidden", ["", " ", "-1"])
def test_a_hidden_device_is_absent(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    assert device_present() is False


@pytest.mark.parametrize("sign", ["/dev/nvidiactl", "/proc/driver/nvidia/version", "nvidia-smi", None])
def test_any_sign_of_a_driver_counts(sign: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os.path, "exists", lambda path: path == sign)
    monkeypatch.setattr(device.shutil, "which", lambda name: name if name == sign else None)
    assert device_present() is (sign is not None)


def held_by_another(home: Path, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(home), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    other = held_by_another(tmp_path / "home", 0.5)
    started = time.monotonic()
    with exclusive_device(tmp_path / "home"):
        assert time.monotonic() - started > 0.2
    assert other.wait(5) == 0


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    other = held_by_another(tmp_path, 60)
    other.kill()
    other.wait(5)
    started = time.monotonic()
    with exclusive_device(tmp_path):
        assert time.monotonic() - started < 5


def test_other_homes_do_not_wait(tmp_path: Path) -> None:
    other = held_by_another(tmp_path / "a", 60)
    try:
        started = time.monotonic()
        with exclusive_device(tmp_path / "b"):
            assert time.monotonic() - started < 5
    finally:
        other.kill()
        other.wait(5)


def test_an_error_inside_frees_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), exclusive_device(tmp_path):
        raise ValueError("inside")
    with exclusive_device(tmp_path):
        assert (tmp_path / "device.lock").exists()

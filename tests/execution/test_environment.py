"""What the doctor finds, and its advice."""

import os
import sys
from pathlib import Path

import pytest

from leadline.execution.environment import Environment, EnvironmentRequest, cache_item, triage
from leadline.execution.worker import Worker

GOOD = Environment(
    python="3.11", executable="/p", triton="3.7.0", torch="2.9", numpy="2.4.1", ptxas="12.8", debug_channel=True, device="H200"
)


@pytest.mark.triton
def test_inspect_in_a_worker():
    pytest.importorskip("triton")
    with Worker("doctor") as worker:
        found = worker.call("leadline.execution.environment:inspect", EnvironmentRequest(), Environment)
    assert found.executable == sys.executable
    assert found.triton
    assert found.torch
    assert found.ptxas[0].isdigit()
    assert found.debug_channel in (True, False)
    assert bool(found.device) != bool(found.device_problem)
    assert set(found.versions) == {"python", "triton", "torch", "numpy", "ptxas"}


def test_versions_leave_out_what_is_missing():
    assert Environment(python="3.11", torch="2.9").versions == {"python": "3.11", "torch": "2.9"}


def test_all_is_well(tmp_path):
    assert [item.state for item in triage(GOOD, tmp_path)] == ["ok"] * 8


def test_numpy_that_breaks_the_interpreter(tmp_path):
    import msgspec

    def numpy(triton: str, version: str):
        found = msgspec.structs.replace(GOOD, triton=triton, numpy=version)
        return next(item for item in triage(found, tmp_path) if item.name == "numpy")

    assert numpy("3.6.0", "2.2.6").state == "ok"
    assert numpy("3.7.0", "2.4.0").state == "ok"
    assert numpy("", "2.4.0").state == "ok"
    trap = numpy("3.6.0", "2.4.0")
    assert (trap.state, trap.remedy) == ("warning", "install 'numpy<2.3'")
    assert trap.detail == "2.4.0; the interpreter of triton 3.6.0 is known to work up to numpy 2.2"


def test_everything_missing_has_a_remedy(tmp_path):
    items = triage(Environment(triton_problem="t", torch_problem="p", device_problem="d"), tmp_path)
    assert [(item.name, item.state) for item in items if item.state != "ok"] == [
        ("triton", "missing"), ("torch", "missing"), ("numpy", "missing"), ("ptxas", "missing"), ("debug channel", "warning"),
        ("device", "warning"),
    ]  # fmt: skip
    assert all(item.remedy for item in items if item.state != "ok")


def test_cache(tmp_path, monkeypatch):
    home = tmp_path / "home"
    assert cache_item(home).detail == f"{home} (0.0 MB)"
    (home / "a").mkdir(parents=True)
    (home / "a" / "b").write_bytes(b"x" * 1_500_000)
    assert cache_item(home).detail == f"{home} (1.5 MB)"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    item = cache_item(Path(home))
    assert (item.state, item.detail) == ("missing", f"{home} is not writable")
    assert item.remedy == "make it writable or set LEADLINE_HOME to a folder that is"

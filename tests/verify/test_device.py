"""The device gate on a simulated device: programs are torch on the CPU that tell the device what their kernels take."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from programs import case_of, edit  # noqa: E402
from simulated import SimulatedDevice, SimulatedMachine  # noqa: E402

from leadline.errors import EvidenceError, KernelError  # noqa: E402
from leadline.execution.worker import Worker  # noqa: E402
from leadline.verify import statistics  # noqa: E402
from leadline.verify.device import measure_on  # noqa: E402
from leadline.verify.records import ColdRequest, ColdResult, DeviceRequest, DeviceResult  # noqa: E402

PROGRAM = '''import builtins
import torch

CASES = {"big": dict(n=256)}
SMALL = {"tiny": dict(n=16)}


def kernel(x, y, us):
    machine, device = builtins.simulation
    machine.launched += 1
    if not machine.ghost:
        device.work(us)
        y.copy_(x * 2.0)


def launch(x):
    y = torch.empty_like(x)
    kernel(x, y, 60.0)
    return y


def reference(x):
    return x * 2.0


def make_inputs(*, device, seed, n):
    generator = torch.Generator(device=device).manual_seed(seed)
    return dict(x=torch.randn(n, device=device, generator=generator))
'''
FAST = edit(("60.0", "40.0"), text=PROGRAM)


def measured(folder: Path, candidate: str, monkeypatch: pytest.MonkeyPatch, original: str = PROGRAM, **more: object) -> DeviceResult:
    device = SimulatedDevice()
    machine = SimulatedMachine(device)
    monkeypatch.setattr("builtins.simulation", (machine, device), raising=False)
    case = case_of(folder, original, cases=("big",), small=("tiny",))
    fields: dict[str, object] = {"case": case, "original": original, "candidate": candidate, "cases": ("big",), "seeds": (5, 6),
                                 "per_case_budget_s": 0.01, "order_seed": 3}  # fmt: skip
    return measure_on(device, machine, DeviceRequest(**(fields | more)))  # type: ignore[arg-type]


def test_an_honest_candidate_is_checked_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(tmp_path, FAST, monkeypatch)
    assert [c.passed for c in result.correctness] == [True]
    timing = result.timings[0]
    assert 1.4 < statistics.speedup(timing.original_us, timing.candidate_us).mid < 1.55
    assert timing.output_bytes == 1024
    assert timing.late_us < 20


@pytest.mark.parametrize(
    ("pairs", "gate"),
    [
        ([("y.copy_(x * 2.0)", "y.copy_(x * 2.5)")], "matches"),
        ([("y.copy_(x * 2.0)", "y[::2].copy_(x[::2] * 2.0)")], "poison"),
        ([("    return y\n", "    return x * 2.0\n")], "ghost"),
        ([("    return y\n", "    launch.n = getattr(launch, 'n', 0) + 1\n    return y * (1 + 3e-7 * (launch.n % 5))\n")], "repeat"),
        ([("    kernel(x, y, 60.0)\n    return y\n", "    return x * 2.0\n")], "kernels"),
        ([("    return y\n", "    x.add_(1)\n    return y\n")], "inputs"),
        ([("    return y\n", "    return y[:4]\n")], "matches"),
        ([("import torch\n", "import torch\n\n1 / 0\n")], "imports"),
        ([("    y = torch", "    int('x')\n    y = torch")], "runs"),
    ],
    ids=["value", "half", "replay", "unstable", "no-kernel", "mutates", "shape", "import", "raises"],
)
def test_wrong_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[str, str]], gate: str) -> None:
    result = measured(tmp_path, edit(*pairs, text=PROGRAM), monkeypatch)
    assert [(c.passed, c.gate) for c in result.correctness] == [(False, gate)]
    assert result.timings == ()


def test_an_answer_remembered_by_address_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembering = edit(
        ("def launch(x):\n", "KNOWN = {}\n\n\ndef launch(x):\n    if x.data_ptr() in KNOWN:\n        kernel(x, torch.empty_like(x), 1.0)\n"
         "        return KNOWN[x.data_ptr()].clone()\n"),
        ("    return y\n", "    if builtins.simulation[0].launched > 12:\n        KNOWN[x.data_ptr()] = y\n    return y\n"),
        text=PROGRAM,
    )  # fmt: skip
    result = measured(tmp_path, remembering, monkeypatch)
    assert result.correctness[-1].gate == "replay"
    assert result.correctness[-1].reason.startswith("a timed call was wrong: max error")


def test_work_that_stops_once_the_checks_seem_over_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = edit(
        ("    y = torch", "    launch.calls = getattr(launch, 'calls', 0) + 1\n    y = torch"),
        ("    kernel(x, y, 60.0)\n", "    if launch.calls < 70:\n        kernel(x, y, 60.0)\n"),
        text=PROGRAM,
    )
    result = measured(tmp_path, lazy, monkeypatch, per_case_budget_s=0.1)
    assert result.correctness[-1].gate == "replay"


def test_in_place_kernels_start_from_the_same_values_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_place = edit(("    y = torch.empty_like(x)\n    kernel(x, y, 60.0)\n    return y\n", "    kernel(x, x, 60.0)\n"), text=PROGRAM)
    result = measured(tmp_path, edit(("60.0", "30.0"), text=in_place), monkeypatch, in_place)
    assert [c.passed for c in result.correctness] == [True]
    timing = result.timings[0]
    assert 1.8 < statistics.speedup(timing.original_us, timing.candidate_us).mid < 2.2


def test_the_originals_own_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="the original fails in case big: ValueError: no"):
        measured(tmp_path, FAST, monkeypatch, edit(("    y = torch", "    raise ValueError('no')\n    y = torch"), text=PROGRAM))
    with pytest.raises(KernelError, match="the original disagrees with its reference in case big: max error"):
        measured(tmp_path, FAST, monkeypatch, edit(("y.copy_(x * 2.0)", "y.copy_(x * 3.0)"), text=PROGRAM))
    half = edit(("y.copy_(x * 2.0)", "y[1:].copy_(x[1:] * 2.0)"), text=PROGRAM)
    with pytest.raises(KernelError, match=r"in case big: max error inf at output 0\[0\] \(got nan"):
        measured(tmp_path, FAST, monkeypatch, half)


def test_without_a_device(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    case = case_of(tmp_path, PROGRAM)
    text = "device timing: no CUDA device here; run on a machine with a device"
    with Worker("device") as worker:
        with pytest.raises(EvidenceError) as caught:
            worker.call("leadline.verify.device:measure", DeviceRequest(case=case, original=PROGRAM, candidate=FAST), DeviceResult)
        assert str(caught.value) == text
        with pytest.raises(EvidenceError) as caught:
            worker.call("leadline.verify.cold:first_calls", ColdRequest(case=case, text=PROGRAM), ColdResult)
        assert str(caught.value) == text


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_real_device(tmp_path: Path) -> None:
    from programs import ORIGINAL

    from leadline.verify.judge import JudgeRequest, Workers, judge

    original = edit(("n=4096", "n=1 << 24"), ("n=3001", "n=(1 << 24) - 77"), text=ORIGINAL)
    faster = edit(("triton.cdiv(n, 16)", "triton.cdiv(n, 1024)"), ("BLOCK=16", "BLOCK=1024"), text=original)
    same = edit(("offs < n", "n > offs"), text=faster)
    case = case_of(tmp_path, original)
    with Worker("device") as device, Worker("interpret", environment={"TRITON_INTERPRET": "1"}) as interpreter:
        workers = Workers(interpret=interpreter, device=device)
        won = judge(JudgeRequest(case=case, original=original, candidate=faster), workers)
        assert won.outcome == "accepted", won
        assert won.speedup is not None
        assert won.speedup.low > 3
        tie = judge(JudgeRequest(case=case_of(tmp_path, faster), original=faster, candidate=same), workers)
        assert tie.outcome != "accepted", tie

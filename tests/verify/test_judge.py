"""The judge with a real interpreter and a simulated device: honest candidates pass, each kind of cheat is refused for its reason."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import HONEST, ORIGINAL, case_of, edit

from leadline.errors import EvidenceError, KernelError, WorkerDied, WorkerTimeout
from leadline.execution.worker import Worker
from leadline.model import Verdict
from leadline.verify.judge import JudgeRequest, Workers, judge
from leadline.verify.records import CaseResult, CaseTiming, ColdRequest, ColdResult, DeviceRequest, DeviceResult

pytest.importorskip("triton")

LAUNCH = "    n = x.numel()\n"
STRAYS = "load out of bounds at line 13 of the candidate"


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Worker]:
    with Worker("interpret", environment={"TRITON_INTERPRET": "1"}) as worker:
        yield worker


class FakeDevice:
    """Answers like a device worker whose clock says what it is told: microseconds of the original and of the candidate."""

    def __init__(self, original: float = 100.0, candidate: float = 50.0, **timing: Any) -> None:
        self.original, self.candidate, self.timing = original, candidate, timing
        self.asked: list[Any] = []
        self.raises: Exception | None = None
        self.failing: CaseResult | None = None
        self.closed = 0

    def call(self, function: str, request: Any, result: type, *, timeout: float = 120) -> Any:
        self.asked.append(request)
        if isinstance(request, ColdRequest):
            slow = request.text == ORIGINAL
            return ColdResult(seconds={"big": 4.0 if slow else 1.0}, compiled=4 if slow else 1)
        assert isinstance(request, DeviceRequest)
        if self.raises is not None and request.candidate:
            raise self.raises
        name = request.cases[0]
        if self.failing is not None and request.candidate:
            return DeviceResult(device="fake", correctness=(self.failing,))
        timings = ()
        if request.timing:
            wobble = [1 + 0.001 * (i % 5) for i in range(20)]
            timings = (
                CaseTiming(
                    case=name, original_us=tuple((self.original * w, self.original / w) for w in wobble),
                    candidate_us=tuple((self.candidate / w, self.candidate * w) for w in wobble),
                    original_wall_us=self.original + 30, **({"candidate_wall_us": self.candidate + 30} | self.timing),
                ),
            )  # fmt: skip
        return DeviceResult(
            device="fake", correctness=(CaseResult(case=name, passed=True),), timings=timings, write_bytes_per_s=3e12, l2_bytes=50 << 20
        )

    def close(self) -> None:
        self.closed += 1


def decide(folder: Path, candidate: str, interpreter: Any, device: Any = None, original: str = ORIGINAL, **more: Any) -> Verdict:
    request = JudgeRequest(case=case_of(folder, original), original=original, candidate=candidate, **more)
    return judge(request, Workers(interpret=interpreter, device=device, fresh=(lambda: device) if device else None))


def test_an_honest_twin_is_accepted(tmp_path: Path, interpreter: Worker) -> None:
    device = FakeDevice()
    verdict = decide(tmp_path, HONEST, interpreter, device)
    assert verdict.outcome == "accepted"
    assert verdict.speedup is not None
    assert verdict.speedup.mid == pytest.approx(2.0, rel=0.01)
    assert set(verdict.per_case) == {"big", "ragged"}
    assert (verdict.compiled, verdict.correct, verdict.measured) == (True, True, True)
    assert [c.name for c in verdict.checks] == ["text", *["interpreter"] * 2, *["device"] * 4, "timing.noise", "gain"]
    assert len({r.seeds for r in device.asked}) == 4


def test_without_a_device_nothing_is_accepted(tmp_path: Path, interpreter: Worker) -> None:
    verdict = decide(tmp_path, HONEST, interpreter)
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "not measured: no device")
    assert (verdict.correct, verdict.measured, verdict.speedup) == (True, False, None)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([("* 2.0 + 1.0, mask", "* 2.0 + 1.01, mask")], "max error 0.01 at output 0["),
        ([("(triton.cdiv(n, 32),)", "(triton.cdiv(n, 64),)")], "leaves elements unwritten: max error inf at output 0[32] (got nan,"),
        ([("tl.load(x_ptr + offs, mask=mask)", "tl.load(x_ptr + offs)")], f"{STRAYS} (27 of 32 lanes)"),
        ([("tl.load(x_ptr + offs, mask=mask)", "tl.load(x_ptr + offs * 10000000)")], f"{STRAYS} (31 of 32 lanes)"),
        ([("    return y\n", "    x.zero_()\n    return y\n")], "changes its input x, which the original leaves alone"),
        ([("* 2.0 + 1.0, mask", "* 0.0 + 1.0, mask")], "max error "),
        ([(LAUNCH, LAUNCH + "    raise ValueError('no')\n")], "raises ValueError: no at line 19 of the candidate in case tiny"),
        ([(LAUNCH, LAUNCH + "    return x + x + 1.0\n")], "launches no Triton kernel"),
        ([("    return y\n", "    return x + x + 1.0\n")], "its result does not change when its kernels do nothing"),
        ([(LAUNCH, LAUNCH + "    x = x.half().float()\n")], "max error "),
    ],
    ids=["value", "half", "near", "far", "mutates", "constant", "raises", "no-kernel", "replay", "precision"],
)
def test_a_wrong_candidate_is_rejected(tmp_path: Path, interpreter: Worker, pairs: list[tuple[str, str]], reason: str) -> None:
    verdict = decide(tmp_path, edit(*pairs, text=HONEST), interpreter, FakeDevice())
    assert verdict.outcome == "rejected"
    assert verdict.reason.startswith(reason)
    assert " in case " in verdict.reason
    assert verdict.correct is False
    assert verdict.speedup is None


def test_less_accurate_than_the_original_within_a_loose_tolerance(tmp_path: Path, interpreter: Worker) -> None:
    loose = edit(("SMALL = ", "TOLERANCE = dict(atol=0.1, rtol=0.1)\nSMALL = "))
    half = edit(("x_ptr + offs, mask=mask)", "x_ptr + offs, mask=mask).to(tl.float16).to(tl.float32)"), text=loose)
    verdict = decide(tmp_path, half, interpreter, FakeDevice(), loose)
    assert verdict.reason.startswith("less accurate than the original: output 0: error (rms)")
    assert decide(tmp_path, half, interpreter, FakeDevice(), loose, allow_numerics=True).outcome == "accepted"


def test_a_candidate_that_replaces_what_judges(tmp_path: Path, interpreter: Worker) -> None:
    patched = edit(("@triton.jit", "alias = torch\nalias.allclose = lambda *a, **k: True\n\n\n@triton.jit"), text=HONEST)
    assert decide(tmp_path, patched, interpreter).reason == "replaced torch.allclose in case tiny"
    assert decide(tmp_path, HONEST, interpreter).correct is True  # the next candidate finds a clean process


def test_hanging_and_crashing_candidates_do_not_take_the_tool_along(tmp_path: Path, interpreter: Worker) -> None:
    hang = edit((LAUNCH, LAUNCH + "    while n:\n        pass\n"), text=HONEST)
    assert decide(tmp_path, hang, interpreter, timeout_s=3).reason == "did not finish within 3 s in case tiny (it was at line 19)"
    crash = edit(("import torch\n", "import faulthandler\nimport torch\n"), (LAUNCH, LAUNCH + "    faulthandler._sigabrt()\n"), text=HONEST)
    reason = decide(tmp_path, crash, interpreter).reason
    assert reason.startswith("out-of-bounds access or crash in case tiny (worker interpret was killed by")


def test_a_no_op_and_edits_are_rejected_before_anything_runs(tmp_path: Path) -> None:
    assert decide(tmp_path, ORIGINAL + "# faster\n", None).reason == "changes nothing"
    assert decide(tmp_path, edit(("return x * 2.0", "return x * 3.0"), text=HONEST), None).reason == "edits the case (reference)"


def test_an_original_that_disagrees_with_its_reference(tmp_path: Path, interpreter: Worker) -> None:
    broken = edit(("generator=generator))", "generator=generator).fill_(3.0))"), ("* 2.0 + 1.0, mask", "* 2.0 + 1.5, mask"))
    with pytest.raises(KernelError) as caught:
        decide(tmp_path, edit(("16", "32"), text=broken), interpreter, original=broken)
    assert str(caught.value) == (
        f"{tmp_path / 'kernel.py'}: the original disagrees with its reference in case tiny: max error 0.5 at output 0[0] "
        "(got 7.5, expected 7, "
        "578 times the tolerance); mend the kernel, the reference or TOLERANCE first"
    )
    assert caught.value.status == 3
    with pytest.raises(KernelError, match="the original disagrees"):
        decide(tmp_path, "", interpreter, original=broken, baseline_only=True)


def test_the_original_alone(tmp_path: Path, interpreter: Worker) -> None:
    verdict = decide(tmp_path, "", interpreter, baseline_only=True)
    assert (verdict.outcome, verdict.reason, verdict.correct) == ("inconclusive", "the original agrees with its reference", True)


def test_in_place_kernels_and_autotuners(tmp_path: Path, interpreter: Worker) -> None:
    tuned = edit(
        ("@triton.jit\n", "@triton.autotune([triton.Config({'BLOCK': b}) for b in (16, 32)], key=['n'])\n@triton.jit\n"),
        ("scale_kernel[(triton.cdiv(n, 16),)](x, y, n, BLOCK=16)", "scale_kernel[lambda m: (triton.cdiv(n, m['BLOCK']),)](x, x, n)"),
        ("    return y\n", ""),
    )
    assert decide(tmp_path, edit(("(16, 32)", "(32, 64)"), text=tuned), interpreter, original=tuned).correct is True
    wrong = edit(("(16, 32)", "(32, 64)"), ("n = x.numel()", "n = x.numel() - 1"), text=tuned)
    assert decide(tmp_path, wrong, interpreter, original=tuned).reason.startswith("max error ")


def test_bf16_dots_and_runtime_loops(tmp_path: Path, interpreter: Worker) -> None:
    """What the interpreter gets wrong as shipped: bf16 products, and loop bounds under newer NumPy."""
    product = '''import torch
import triton
import triton.language as tl

CASES = {"full": dict(k=512)}
SMALL = {"tiny": dict(k=48)}


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, K, B: tl.constexpr):
    i = tl.arange(0, 16)
    acc = tl.zeros((16, 16), tl.float32)
    for k in range(0, K, B):
        j = k + tl.arange(0, B)
        a = tl.load(a_ptr + i[:, None] * K + j[None, :])
        acc += tl.dot(a, tl.load(b_ptr + j[:, None] * 16 + i[None, :]))
    tl.store(c_ptr + i[:, None] * 16 + i[None, :], acc.to(tl.bfloat16))


def launch(a, b):
    c = torch.empty(16, 16, dtype=a.dtype, device=a.device)
    dot_kernel[(1,)](a, b, c, a.shape[1], B=16)
    return c


def reference(a, b):
    return (a.float() @ b.float()).to(a.dtype)


def make_inputs(*, device, seed, k):
    torch.manual_seed(seed)
    return dict(a=torch.randn(16, k, device=device).bfloat16(), b=torch.randn(k, 16, device=device).bfloat16())
'''
    case = case_of(tmp_path, product, small=("tiny",), cases=("full",))
    request = JudgeRequest(case=case, original=product, candidate=edit(("B=16", "B=32"), text=product))
    verdict = judge(request, Workers(interpret=interpreter))
    assert verdict.outcome == "rejected"  # 48 is no multiple of 32: reads past the row
    other = product.replace("acc += tl.dot(a, ", "acc = acc + tl.dot(a, ")
    same = judge(JudgeRequest(case=case, original=product, candidate=other), Workers(interpret=interpreter))
    assert same.correct is True


def test_the_clock_decides(tmp_path: Path, interpreter: Worker) -> None:
    def timed(**device: Any) -> tuple[str, str]:
        verdict = decide(tmp_path, HONEST, None, FakeDevice(**device))
        return verdict.outcome, verdict.reason

    assert timed(candidate=100.0) == ("rejected", "not faster: 1.000x (1.000 to 1.000)")
    assert timed(candidate=99.5)[0] == "rejected"
    assert timed(candidate=120.0)[1].startswith("slower in case big (0.833x")
    assert timed(late_us=60.0) == ("rejected", "work goes on 60 us after the call's end in case big")
    assert timed(output_bytes=10**9)[1].startswith("50.0 us is less than it takes to write the outputs (266.7 us)")
    assert timed(candidate_wall_us=400.0)[1] == "the wrapper got slower: 400 us of host time for 130 us in case big"


def test_a_device_that_fails(tmp_path: Path) -> None:
    device = FakeDevice()
    device.failing = CaseResult(case="tiny", passed=False, gate="matches", reason="max error 1")
    assert decide(tmp_path, HONEST, None, device).reason == "max error 1 in case tiny"
    assert device.closed == 1
    device.failing, device.raises = None, WorkerDied("worker device was killed by SIGSEGV")
    reason = "out-of-bounds access or crash in case tiny (worker device was killed by SIGSEGV)"
    assert decide(tmp_path, HONEST, None, device).reason == reason
    device.raises = WorkerTimeout("too long")
    assert decide(tmp_path, HONEST, None, device, timeout_s=7).reason == "did not finish within 27 s in case tiny"
    device.raises = EvidenceError("no CUDA device here", where="device timing")
    verdict = decide(tmp_path, HONEST, None, device)
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "not measured: no CUDA device here")


def test_the_cost_of_compiling(tmp_path: Path) -> None:
    verdict = decide(tmp_path, HONEST, None, FakeDevice(candidate=100.0), compile_cost=True)
    assert verdict.outcome == "accepted"
    assert verdict.reason == "faster cold start: 4.000x (4.000 to 4.000)"
    assert "first calls 4000 ms -> 1000 ms, kernels compiled 4 -> 1; warm 1.000x" in [c.detail for c in verdict.checks]


def test_a_candidate_that_does_not_compile(tmp_path: Path) -> None:
    request = JudgeRequest(case=case_of(tmp_path), original=ORIGINAL, candidate=edit(("16)", "32)"), ("BLOCK=16", "BLOCK=24")))
    with Worker("compile") as compiler:
        verdict = judge(request, Workers(compile=compiler))
        assert verdict.outcome == "rejected"
        assert verdict.reason.startswith("does not compile for cuda:90: ")
        assert "power of 2" in verdict.reason
        honest = judge(JudgeRequest(case=case_of(tmp_path), original=ORIGINAL, candidate=HONEST), Workers(compile=compiler))
        raising = edit(("n = x.numel()", "n = x.numel()\n    if n > 1000:\n        raise ValueError(n)"))
        late = judge(JudgeRequest(case=case_of(tmp_path), original=ORIGINAL, candidate=raising), Workers(compile=compiler))
        always = edit(("n = x.numel()", "raise ValueError('no')"))
        never = judge(JudgeRequest(case=case_of(tmp_path), original=ORIGINAL, candidate=always), Workers(compile=compiler))
    assert (late.outcome, late.correct) == ("inconclusive", None)
    assert late.checks[-2].detail.startswith("small case tiny stands in: launch raised ValueError: 4096")
    assert (never.outcome, never.correct) == ("rejected", False)
    assert never.reason.startswith("its launch cannot be traced in case big, where the original's can: launch raised ValueError: no")
    assert honest.compiled is True
    assert [c.detail for c in honest.checks if c.name == "compiles"] == ["1 launches for cuda:90"]


def test_half_a_result_at_full_size_only(tmp_path: Path, interpreter: Worker) -> None:
    half = edit(("(triton.cdiv(n, 32),)", "(min(triton.cdiv(n, 32), 64),)"), text=HONEST)
    late = edit(("    n = x.numel()\n", "    n = x.numel()\n    if n == 3001:\n        raise ValueError(n)\n"), text=HONEST)
    with Worker("compile") as compiler:
        workers = Workers(interpret=interpreter, compile=compiler)
        cut, seen, unseen = (
            judge(JudgeRequest(case=case_of(tmp_path), original=ORIGINAL, candidate=text), workers) for text in (half, HONEST, late)
        )
    assert (cut.outcome, cut.correct) == ("rejected", False)
    assert cut.reason == "writes only 50 % of output 0 in case big, where the original writes all of it (sampled)"
    assert (seen.outcome, seen.correct) == ("inconclusive", True)
    assert [(c.case, c.passed) for c in seen.checks if c.name == "coverage"] == [("big", True), ("ragged", True)]
    assert (unseen.outcome, unseen.correct) == ("inconclusive", None)
    told = next(c for c in unseen.checks if c.name == "coverage" and c.passed is None)
    assert (told.case, told.detail.partition(":")[0]) == ("ragged", "the candidate was not sampled")


def test_changes_that_need_consent(tmp_path: Path) -> None:
    assert decide(tmp_path, HONEST, None, applicability="changes_numerics").reason == "changes numerics, which was not allowed"
    assert decide(tmp_path, HONEST, None, applicability="unsafe").reason == "unsafe: its precondition is not proved"

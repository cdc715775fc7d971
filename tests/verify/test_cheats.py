"""Candidates that keep old results, rename, or turn to a library where nobody looks; and the honest ones that look like them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from programs import HONEST, ORIGINAL, case_of, edit

from leadline.execution.worker import Worker
from leadline.model import Verdict
from leadline.verify import guards
from leadline.verify.judge import JudgeRequest, Workers, _call, _Stop, judge
from leadline.verify.records import InterpretRequest, InterpretResult

pytest.importorskip("triton")

HEAD = "def launch(x):\n"
END = "    return y\n"
ALLOCATION = "    y = torch.empty_like(x)\n"


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Worker]:
    with Worker("interpret", environment={"TRITON_INTERPRET": "1"}) as worker:
        yield worker


def decide(folder: Path, candidate: str, interpreter: Worker | None, compiler: Worker | None = None) -> Verdict:
    request = JudgeRequest(case=case_of(folder), original=ORIGINAL, candidate=candidate, device=False)
    return judge(request, Workers(interpret=interpreter, compile=compiler))


def keeping(key: str) -> str:
    kept = f"KEPT = {{}}\n\n\n{HEAD}    key = {key}\n    if key in KEPT:\n        return KEPT[key]\n"
    return edit((HEAD, kept), (END, "    KEPT[key] = y\n" + END), text=HONEST)


@pytest.mark.parametrize("key", ["id(x)", "x.data_ptr()", "(x.data_ptr(), x._version)", "(x.shape, x.data_ptr(), x.stride())"])
def test_results_kept_by_identity_are_old_ones(tmp_path: Path, interpreter: Worker, key: str) -> None:
    verdict = decide(tmp_path, keeping(key), interpreter)
    assert (verdict.outcome, verdict.correct) == ("rejected", False)
    # A copy of the inputs may by chance lie where an earlier one lay; then the kept result shows even earlier.
    told = ("returns an old result when the same tensors hold other values", "returns the memory of an earlier result", "max error")
    assert verdict.reason.startswith(told)


def test_results_kept_on_the_tensor(tmp_path: Path, interpreter: Worker) -> None:
    on_tensor = edit((HEAD, HEAD + "    if hasattr(x, 'kept'):\n        return x.kept\n"), (END, "    x.kept = y\n" + END), text=HONEST)
    assert decide(tmp_path, on_tensor, interpreter).reason == "returns an old result when the same tensors hold other values in case tiny"


def test_a_buffer_kept_from_call_to_call_is_no_result(tmp_path: Path, interpreter: Worker) -> None:
    buffer = "    if x.shape not in KEPT:\n        KEPT[x.shape] = torch.empty_like(x)\n    y = KEPT[x.shape]\n"
    kept = edit((HEAD, "KEPT = {}\n\n\n" + HEAD), (ALLOCATION, buffer), text=HONEST)
    assert decide(tmp_path, kept, interpreter).reason == (
        "returns the memory of an earlier result, which the original does not do in case tiny"
    )
    scratch = edit((END, "    return y.clone()\n"), text=kept)  # the buffer stays inside: fine
    assert decide(tmp_path, scratch, interpreter).correct is True


def test_an_original_that_keeps_results_may_be_followed(tmp_path: Path, interpreter: Worker) -> None:
    # What the original does wrong is no fault of a candidate that does it, too.
    original = edit((HEAD, HEAD + "    if hasattr(x, 'kept'):\n        return x.kept\n"), (END, "    x.kept = y\n" + END))
    candidate = edit(("triton.cdiv(n, 16)", "triton.cdiv(n, 32)"), ("BLOCK=16", "BLOCK=32"), text=original)
    request = JudgeRequest(case=case_of(tmp_path, original), original=original, candidate=candidate, device=False)
    assert judge(request, Workers(interpret=interpreter)).correct is True


def test_a_library_for_large_sizes_only(tmp_path: Path, interpreter: Worker) -> None:
    detour = edit((HEAD, HEAD + "    if x.numel() > 1000:\n        return x * 2.0 + 1.0\n"), text=HONEST)
    with Worker("compile") as compiler:
        verdict = decide(tmp_path, detour, interpreter, compiler)
        assert (verdict.outcome, verdict.correct, verdict.reason) == ("rejected", False, "launches no Triton kernel in case big")
        assert decide(tmp_path, HONEST, interpreter, compiler).correct is True


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([("offs", "offsets")] * 4, "changes nothing but names of local variables"),
        ([("    n = x.numel()\n", "    n = x.numel()  # elements\n")], "changes nothing"),
    ],
)
def test_renaming_is_no_change(tmp_path: Path, pairs: list[tuple[str, str]], reason: str) -> None:
    candidate = ORIGINAL.replace("offs", "offsets") if pairs[0][0] == "offs" else edit(*pairs)
    verdict = decide(tmp_path, candidate, None)
    assert (verdict.outcome, verdict.reason) == ("rejected", reason)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(a):\n    b = a\n    c = b\n    return b\n", "def f(a):\n    b = a\n    c = b\n    return c\n"),
        ("def f(a):\n    b = 1\n    return lambda a: a\n", "def f(a):\n    b = 1\n    return lambda a: b\n"),
        ("def f(a, b):\n    return a\n", "def f(b, a):\n    return a\n"),
        ("g = 1\ndef f():\n    global g\n    g = 2\n", "g = 1\ndef f():\n    h = 2\n"),
        ("def f():\n    return g(x=1)\n", "def f():\n    return g(y=1)\n"),
    ],
)
def test_what_looks_like_renaming_and_is_none(tmp_path: Path, old: str, new: str) -> None:
    assert not any(o.gate == "noop" for o in guards.objections(case_of(tmp_path), old, new))


class Slow:
    """A worker that needs longer for the whole than it is given, and answers for the original alone."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def call(self, function: str, request: InterpretRequest, result: type, *, timeout: float = 120) -> InterpretResult:
        import time

        from leadline.errors import WorkerTimeout

        if request.candidate:
            raise WorkerTimeout("did not finish", where="/tmp/kernel.py:7")
        time.sleep(self.seconds)
        return InterpretResult()

    def close(self) -> None:
        return None


@pytest.mark.parametrize(("seconds", "outcome"), [(0.0, "rejected"), (0.1, "inconclusive")])
def test_a_slow_original_is_no_endless_loop_of_the_candidate(tmp_path: Path, seconds: float, outcome: str) -> None:
    ask = InterpretRequest(case=case_of(tmp_path), original=ORIGINAL, candidate=HONEST)
    alone = InterpretRequest(case=case_of(tmp_path), original=ORIGINAL)
    with pytest.raises(_Stop) as stop:
        _call(cast(Any, Slow(seconds)), "f", ask, alone, InterpretResult, "tiny", 1.0)
    assert stop.value.outcome == outcome
    told = {"rejected": "did not finish within 1 s in case tiny (it was at line 7)",
            "inconclusive": "too slow to be checked within 1 s in case tiny: the original alone takes 0.1 s"}  # fmt: skip
    assert stop.value.reason == told[outcome]

"""Semantics of a candidate on the small cases, in Triton's CPU interpreter. Runs in an interpret worker."""

import contextlib
import time
from typing import Any

import torch

from leadline.verify import interpreter
from leadline.verify.program import Program, load_launch, load_original, one_line, tampered
from leadline.verify.records import CaseResult, InterpretRequest, InterpretResult
from leadline.verify.trial import Baseline, OriginalFails, baseline, examine


class Interpreter:
    """The interpreter as a `trial.Machine`: serial, so repeats agree bitwise; every access is checked."""

    device = "cpu"
    keep = True
    strict = True

    def count(self) -> int:
        return interpreter.count()

    def ghosts(self) -> contextlib.AbstractContextManager[Any]:
        return interpreter.ghosts()

    def watch(self, inputs: dict[str, Any], allocated: list[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
        return interpreter.watching(inputs, allocated)

    def violation(self) -> str:
        return interpreter.BOUNDS.first

    def synchronize(self) -> None:
        return None


def ready(request: InterpretRequest) -> InterpretResult:
    """Start up (import torch and triton, patch the interpreter) and answer nothing, so that a time-out measures the kernels alone."""
    interpreter.prepare()
    return InterpretResult()


def run_small(request: InterpretRequest) -> InterpretResult:
    """Candidate against reference and original on each small case, with poisoned allocations and checked addresses.

    Raises KernelError when the original cannot be imported or disagrees with its reference (the message names case, error and
    place) and EvidenceError without triton. A case that kills this process is for the caller to report.
    """
    interpreter.prepare()
    torch.set_num_threads(1)
    program = load_original(request.case, request.original)
    names = request.small or tuple(program.small)
    if not names:
        _, refused = _candidate(request)
        if refused[0]:  # nothing can be run, but it can be told that there is nothing to run
            return InterpretResult(cases=(CaseResult(case="", passed=False, gate=refused[0], reason=refused[1]),))
        return InterpretResult(unsupported="the file has no SMALL cases")
    machine, results = Interpreter(), []
    launch, refused = _candidate(request)
    for name in names:
        start = time.perf_counter()
        try:
            result = _one_case(program, launch, refused, machine, name, request)
        except OriginalFails as error:
            reason = f"the interpreter cannot run the original in case {name}: {error.args[0]}"
            return InterpretResult(cases=tuple(results), unsupported=reason)
        results.append(_timed(result, time.perf_counter() - start))
    return InterpretResult(cases=tuple(results))


def _candidate(request: InterpretRequest) -> tuple[Any, tuple[str, str]]:
    """The candidate's wrapper, or the gate and reason its import failed for."""
    if not request.candidate:
        return None, ("", "")
    try:
        launch = load_launch(request.case, request.candidate)
    except (Exception, SystemExit) as error:
        return None, ("imports", f"cannot be imported: {one_line(error)}")
    changed = tampered()
    if changed:
        return None, ("tampering", f"replaced {changed[0]}")
    return launch, ("", "")


def _one_case(
    program: Program, launch: Any, refused: tuple[str, str], machine: Interpreter, name: str, request: InterpretRequest
) -> CaseResult:
    result = CaseResult(case=name, passed=True)
    for i, seed in enumerate(request.seeds or (0,)):
        inputs = program.inputs(name, machine.device, seed)
        base = baseline(program, inputs, machine, name)
        if refused[0]:
            return CaseResult(case=name, passed=False, gate=refused[0], reason=refused[1])
        if launch is None:
            result = CaseResult(case=name, passed=True, notes=_notes(base))
            continue
        result = examine(
            launch, program, base, inputs, machine, name,
            thorough=i == 0, allow_numerics=request.allow_numerics, tolerances=request.tolerances,
        )  # fmt: skip
        if not result.passed:
            return result
        if base.violation:
            result = CaseResult(case=name, passed=True, error=result.error, original_error=result.original_error,
                                launches=result.launches, notes=_notes(base))  # fmt: skip
    return result


def _notes(base: Baseline) -> tuple[str, ...]:
    return (f"the original: {base.violation}",) if base.violation else ()


def _timed(result: CaseResult, seconds: float) -> CaseResult:
    import msgspec

    return msgspec.structs.replace(result, seconds=seconds)

"""The judge: one candidate against the original, gate after gate, failing closed. Runs in the main process and drives workers."""

import contextlib
import dataclasses
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from leadline.backends.base import CompileRequest, select
from leadline.errors import EvidenceError, KernelError, LeadlineError, WorkerDied, WorkerError, WorkerTimeout
from leadline.execution.worker import Worker
from leadline.ingest.dry import TraceRequest
from leadline.model import Check, Compiled, Interval, KernelCase, Record, Trace, Verdict
from leadline.verify import coverage, guards, statistics
from leadline.verify.records import (
    CaseResult,
    CaseTiming,
    ColdRequest,
    ColdResult,
    DeviceRequest,
    DeviceResult,
    InterpretRequest,
    InterpretResult,
)

T = TypeVar("T")

_COLD_TRIALS = 2
_SCREENING_S = 1.0  # a budget per case below this only ranks candidates
_WARM_LOSS = 0.05
_LAUNCHES = 8  # launches of a case that are compiled where no device does it
_START = 120.0  # seconds a worker may take to import torch and triton
_RUNS = 16  # a gate may run original, candidate and reference this often, all seeds together
_LASTING = ("tampering", "threads", "imports")  # faults that outlive the call


class Caller(Protocol):
    """What the judge needs of a worker."""

    def call(self, function: str, request: Record, result: type[T], *, timeout: float = 120) -> T: ...
    def close(self) -> None: ...


class Processes(Protocol):
    """The processes that a judge may use; None where there is none."""

    @property
    def interpret(self) -> Caller | None: ...
    @property
    def compile(self) -> Caller | None: ...
    @property
    def device(self) -> Caller | None: ...


@dataclasses.dataclass
class Workers:
    """The processes that a judge may use; None where there is none. `fresh` starts a device worker that shares nothing (cold compiles)."""

    interpret: Caller | None = None
    compile: Caller | None = None
    device: Caller | None = None
    fresh: Callable[[], Caller] | None = None


class JudgeRequest(Record, frozen=True):
    """Two whole files and how strict to be. `threshold` is the least gain that counts; `timeout_s` bounds one gate on one case."""

    case: KernelCase
    original: str
    candidate: str
    device: bool = True
    threshold: float = 0.02
    seeds: int = 3
    allow_numerics: bool = False
    applicability: str = "safe"
    per_case_budget_s: float = 2.0
    compile_cost: bool = False
    cases: tuple[str, ...] = ()
    timeout_s: float = 60.0
    baseline_only: bool = False  # check the original against its reference and nothing else
    target: str = "cuda:90"  # what the candidate must compile for


@dataclasses.dataclass
class _Trial:
    """What the gates have found so far."""

    checks: list[Check] = dataclasses.field(default_factory=list)
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)

    def verdict(self, outcome: str, reason: str) -> Verdict:
        return Verdict(outcome=outcome, reason=reason, checks=tuple(self.checks), **self.fields)


class _Stop(Exception):
    """A gate settles the verdict."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


def judge(request: JudgeRequest, workers: Processes) -> Verdict:
    """The verdict on `candidate`: text, interpreter, device, clock, in that order; the first gate that fails ends it.

    Raises KernelError when the original itself is at fault (it does not import, run or match its reference). A gate that cannot be
    run here leaves a check with passed=None and the verdict inconclusive; only a measured gain is accepted.
    """
    trial = _Trial()
    try:
        if request.baseline_only:
            return _baseline(request, workers, trial)
        _text(request, trial)
        interpreted = _interpreter(request, workers, trial)
        _compiles(request, workers, trial)
        _coverage(request, workers, trial)
        if not request.device or workers.device is None:
            trial.checks.append(Check(name="timing", passed=None, detail="not measured: no device"))
            return trial.verdict("inconclusive", "not measured: no device")
        with _exclusive(workers):
            results = _device(request, workers, trial)
        if not interpreted:
            detail = "the interpreter could not follow the kernels; the device's small cases stand in"
            trial.checks.append(Check(name="addresses", passed=None, detail=detail))
        _clock(request, results, trial)
        if request.compile_cost:
            with _exclusive(workers):
                _cold(request, workers, trial)
        return _gain(request, trial)
    except _Stop as stop:
        return trial.verdict(stop.outcome, stop.reason)
    except KernelError as error:
        if error.where:
            raise
        raise KernelError(error.what, where=request.case.path, remedy=error.remedy) from None


def _baseline(request: JudgeRequest, workers: Processes, trial: _Trial) -> Verdict:
    """Only the original: KernelError when it is at fault, otherwise a verdict that says which gates could look at it."""
    alone = _without_candidate(request)
    followed = _interpreter(alone, workers, trial)
    if request.device and workers.device is not None:
        with _exclusive(workers):
            _device(alone, workers, trial)
        followed = True
    trial.fields["correct"] = True if followed else None
    return trial.verdict("inconclusive", "the original agrees with its reference" if followed else "the original could not be checked here")


def _exclusive(workers: Processes) -> contextlib.AbstractContextManager[None]:
    """The device to ourselves, where the workers can say so: two timings side by side would both be wrong."""
    hold = getattr(workers, "exclusive", None)
    return hold() if hold is not None else contextlib.nullcontext()


def _without_candidate(request: JudgeRequest) -> JudgeRequest:
    return msgspec.structs.replace(request, candidate="", seeds=1)


def _text(request: JudgeRequest, trial: _Trial) -> None:
    found = guards.objections(request.case, request.original, request.candidate)
    if found:
        trial.checks.append(Check(name=f"text.{found[0].gate}", passed=False, detail=found[0].reason))
        raise _Stop("rejected", found[0].reason)
    trial.checks.append(Check(name="text", passed=True, detail="the case is untouched; nothing is called that the original does not call"))
    if request.applicability == "unsafe" and not request.allow_numerics:
        trial.checks.append(Check(name="applicability", passed=False, detail="unsafe"))
        raise _Stop("rejected", "unsafe: its precondition is not proved")
    if request.applicability == "changes_numerics" and not request.allow_numerics:
        trial.checks.append(Check(name="numerics", passed=False, detail="changes_numerics"))
        raise _Stop("rejected", "changes numerics, which was not allowed")


def _interpreter(request: JudgeRequest, workers: Processes, trial: _Trial) -> bool:
    """Whether the interpreter followed the kernels on every small case. Raises _Stop when the candidate is wrong."""
    if workers.interpret is None:
        trial.checks.append(Check(name="interpreter", passed=None, detail="no interpreter here"))
        return False
    seeds = _seeds(max(1, request.seeds))
    followed = bool(request.case.small)
    for name in request.case.small or ("",):
        small = (name,) if name else ()
        ask = InterpretRequest(case=request.case, original=request.original, candidate=request.candidate, small=small, seeds=seeds,
                               allow_numerics=request.allow_numerics)  # fmt: skip
        alone = InterpretRequest(case=request.case, original=request.original, small=small, seeds=seeds[:1])
        try:
            _ready(workers.interpret, alone)
            answer = _call(workers.interpret, "leadline.verify.interpreted:run_small", ask, alone, InterpretResult, name, request.timeout_s)
        except EvidenceError as error:
            trial.checks.append(Check(name="interpreter", passed=None, detail=str(error), case=name))
            return False
        except _Stop as stop:
            _stopped("interpreter", stop, name, trial)
            if stop.outcome == "rejected":
                raise
            followed = False
            continue
        if answer.unsupported:
            trial.checks.append(Check(name="interpreter", passed=None, detail=answer.unsupported, case=name))
            followed = False
        try:
            _report("interpreter", answer.cases, trial)
        except _Stop:
            if any(r.gate in _LASTING for r in answer.cases):
                workers.interpret.close()  # what it replaced would be there for the next candidate
            raise
    if followed:
        trial.fields["correct"] = True
    return followed


def _ready(worker: Caller, request: InterpretRequest) -> None:
    try:
        worker.call("leadline.verify.interpreted:ready", request, InterpretResult, timeout=_START)
    except WorkerError as error:
        raise _Stop("inconclusive", f"the interpreter does not start: {error.what}") from None


def _stopped(gate: str, stop: _Stop, name: str, trial: _Trial) -> None:
    trial.checks.append(Check(name=gate, passed=False if stop.outcome == "rejected" else None, detail=stop.reason, case=name))
    if stop.outcome == "rejected":
        trial.fields["correct"] = False


def _report(gate: str, results: tuple[CaseResult, ...], trial: _Trial) -> None:
    for result in results:
        detail = result.reason or f"largest error {result.error:.3g} of the tolerance (original {result.original_error:.3g})"
        if result.notes:
            detail += "; " + "; ".join(result.notes)
        name = f"{gate}.{result.gate}" if result.gate else gate
        trial.checks.append(Check(name=name, passed=result.passed, detail=detail, case=result.case))
        if not result.passed:
            trial.fields["correct"] = False
            raise _Stop("rejected", f"{result.reason} in case {result.case}" if result.case else result.reason)


def _compiles(request: JudgeRequest, workers: Processes, trial: _Trial) -> None:
    """Compile every launch of the candidate's first case ahead of time. A device compiles anyway, so this is for machines without."""
    if workers.compile is None or (request.device and workers.device is not None) or request.case.kind != "case":
        return
    name = next(iter(request.cases or request.case.cases), "")
    if not name:
        return
    with tempfile.TemporaryDirectory(prefix="leadline-candidate-") as folder:
        path = Path(folder) / Path(request.case.path).name
        path.write_text(request.candidate, encoding="utf-8")
        path.chmod(0o400)
        # A candidate may leave the case's functions out (load_launch asks for the wrapper alone): they are the original's anyway.
        partial = "def make_inputs" not in request.candidate or "CASES" not in request.candidate
        case_file = request.case.case_file or (request.case.path if partial else "")
        case = msgspec.structs.replace(request.case, path=str(path), source=request.candidate, case_file=case_file)
        try:
            ask = TraceRequest(case=case, case_name=name, target=request.target)
            trace = workers.compile.call("leadline.ingest.dry:trace", ask, Trace, timeout=request.timeout_s)
            if trace.fallback and not _traced(request, workers.compile, name).fallback:
                # The full-size launch went unseen: what holds for the small cases must not stand for it.
                trial.checks.append(Check(name="compiles", passed=None, detail=trace.fallback, case=name))
                trial.fields["correct"] = None
                return
            if not trace.launches and _traced(request, workers.compile, name).launches:
                reason = f"launches no Triton kernel in case {name}"
                trial.checks.append(Check(name="kernels", passed=False, detail=reason, case=name))
                trial.fields["correct"] = False
                raise _Stop("rejected", reason)
            function = select(request.target).functions["compile"]
            for launch in trace.launches[:_LAUNCHES]:
                each = CompileRequest(launch=launch, target=request.target)
                compiled = workers.compile.call(function, each, Compiled, timeout=request.timeout_s)
                if compiled.error:
                    reason = f"does not compile for {request.target}: {compiled.error}"
                    trial.checks.append(Check(name="compiles", passed=False, detail=reason, case=name))
                    raise _Stop("rejected", f"{reason} in case {name}")
        except LeadlineError as error:
            if isinstance(error, (KernelError, WorkerDied, WorkerTimeout)) and _traces(request, workers.compile, name):
                reason = f"its launch cannot be traced in case {name}, where the original's can: {error.what}"
                trial.checks.append(Check(name="compiles", passed=False, detail=reason, case=name))
                trial.fields["correct"] = False
                raise _Stop("rejected", reason) from None
            trial.checks.append(Check(name="compiles", passed=None, detail=str(error), case=name))
            return
    trial.fields["compiled"] = True
    trial.checks.append(Check(name="compiles", passed=True, detail=f"{len(trace.launches)} launches for {request.target}", case=name))


def _coverage(request: JudgeRequest, workers: Processes, trial: _Trial) -> None:
    """Compare what both store of each output at full size. A device runs the named cases for real, so this is for machines without."""
    if workers.compile is None or workers.interpret is None or (request.device and workers.device is not None):
        return
    if request.case.kind != "case":
        return
    for name in (request.cases or request.case.cases)[: coverage.MOST_CASES]:
        sides: list[coverage.Side] = []
        try:
            for text in (request.original, request.candidate):
                sides.append(
                    coverage.look(request.case, text, name, request.target, workers.compile, workers.interpret, request.timeout_s)
                )
        except coverage.Unseen as unseen:
            whose = "candidate" if sides else "original"
            trial.checks.append(Check(name="coverage", passed=None, detail=f"the {whose} was not sampled: {unseen}", case=name))
            if sides and not unseen.full_size:
                trial.fields["correct"] = None  # what holds for the small cases must not stand for a size that went unseen
            continue
        found = coverage.coverage(sides[0], sides[1], name)
        trial.checks.append(found)
        if found.passed is False:
            trial.fields["correct"] = False
            raise _Stop("rejected", found.detail)


def _traced(request: JudgeRequest, worker: Caller, name: str) -> Trace:
    """The original's launches in that case; a wrapper that turns to a library or fails for large sizes shows against them."""
    ask = TraceRequest(case=request.case, case_name=name, target=request.target, text=request.original)
    return worker.call("leadline.ingest.dry:trace", ask, Trace, timeout=request.timeout_s)


def _traces(request: JudgeRequest, worker: Caller, name: str) -> bool:
    """Whether the original's launches of that case can be traced: then a candidate whose cannot is at fault."""
    try:
        return bool(_traced(request, worker, name).launches)
    except LeadlineError:
        return False


def _call(worker: Caller, function: str, request: Record, alone: Record, result: type[T], name: str, timeout: float) -> T:
    """The worker's answer. A crash or hang is the candidate's fault unless the original alone does the same."""
    place = f" in case {name}" if name else ""
    hangs = False
    try:
        return worker.call(function, request, result, timeout=timeout)
    except (KernelError, EvidenceError):
        raise
    except WorkerTimeout as error:
        hangs = True
        line = f" (it was at line {error.where.rpartition(':')[2]})" if error.where else ""
        fault = ("rejected", f"did not finish within {timeout:g} s{place}{line}")
    except WorkerDied as error:
        fault = ("rejected", f"out-of-bounds access or crash{place} ({error.what})")
    except WorkerError as error:
        fault = ("inconclusive", f"{error.what}{place}")
    except LeadlineError as error:
        fault = ("inconclusive", f"{error}{place}")
    worker.close()
    if not getattr(request, "candidate", ""):  # it was the original alone
        what = f"does not finish within {timeout:g} s" if hangs else f"fails: {fault[1]}"
        raise _Stop("inconclusive", f"the original itself {what}{place if hangs else ''}")
    try:
        worker.call(function, alone, result, timeout=_START + timeout)
        started = time.monotonic()
        if hangs:  # once more, now that the worker is warm: many runs of a slow original are no endless loop of the candidate
            worker.call(function, alone, result, timeout=timeout)
            seconds = time.monotonic() - started
            if seconds * _RUNS > timeout:
                fault = ("inconclusive", f"too slow to be checked within {timeout:g} s{place}: the original alone takes {seconds:.1f} s")
    except (KernelError, EvidenceError):
        raise
    except LeadlineError as error:
        worker.close()
        fault = ("inconclusive", f"the original itself fails here{place}: {error.what}")
    raise _Stop(*fault)


def _device(request: JudgeRequest, workers: Processes, trial: _Trial) -> list[DeviceResult]:
    assert workers.device is not None
    names = request.cases or request.case.cases
    if not names:
        trial.checks.append(Check(name="device", passed=None, detail="the file has no CASES"))
        raise _Stop("inconclusive", "the file has no CASES to measure")
    results = []
    for name in (*request.case.small, *names):
        timed = name in names
        ask = DeviceRequest(
            case=request.case, original=request.original, candidate=request.candidate, cases=(name,),
            seeds=_seeds(1 if timed else max(1, request.seeds)), allow_numerics=request.allow_numerics,
            per_case_budget_s=request.per_case_budget_s, order_seed=secrets.randbelow(2**31), timing=timed and bool(request.candidate),
        )  # fmt: skip
        alone = DeviceRequest(case=request.case, original=request.original, candidate="", cases=(name,), seeds=ask.seeds, timing=False)
        timeout = request.timeout_s + 10 * request.per_case_budget_s
        try:
            answer = _call(workers.device, "leadline.verify.device:measure", ask, alone, DeviceResult, name, timeout)
        except EvidenceError as error:
            trial.checks.append(Check(name="device", passed=None, detail=str(error), case=name))
            raise _Stop("inconclusive", f"not measured: {error.what}") from None
        except _Stop as stop:
            _stopped("device", stop, name, trial)
            raise
        except KernelError:
            workers.device.close()
            raise
        try:
            _report("device", answer.correctness, trial)
        except _Stop:
            workers.device.close()  # an error on the device may stick to its process
            raise
        results.append(answer)
    trial.fields |= {"compiled": True, "correct": True}
    return results


def _clock(request: JudgeRequest, results: list[DeviceResult], trial: _Trial) -> None:
    """Turn samples into intervals; reject what no honest program can show."""
    noises: list[float] = []
    per_case: dict[str, Interval] = {}
    trial.fields |= {"original_us": {}, "candidate_us": {}, "per_case": per_case, "measured": True}
    samples: dict[str, tuple[statistics.Pairs, statistics.Pairs]] = {}
    for result in results:
        for timing in result.timings:
            old, new = _median(timing.original_us), _median(timing.candidate_us)
            trial.fields["original_us"][timing.case], trial.fields["candidate_us"][timing.case] = old, new
            for name, reason in _impossible(timing, result, new):
                trial.checks.append(Check(name=f"timing.{name}", passed=False, detail=reason, case=timing.case))
                raise _Stop("rejected", f"{reason} in case {timing.case}")
            samples[timing.case] = (timing.original_us, timing.candidate_us)
            per_case[timing.case] = statistics.speedup(*samples[timing.case])
            noises.append(statistics.noise(timing.original_us))
    missing = [n for n in request.cases or request.case.cases if n not in per_case]
    if missing:
        trial.checks.append(Check(name="timing", passed=None, detail="not timed", case=missing[0]))
        raise _Stop("inconclusive", f"not measured in case {missing[0]}")
    trial.fields["noise"] = max(noises)
    trial.fields["speedup"] = statistics.family(samples)
    trial.checks.append(Check(name="timing.noise", passed=True, detail=f"the original against itself: within {max(noises):.2%}"))
    if request.compile_cost:
        return
    for (name, interval), floor in zip(per_case.items(), noises, strict=True):
        if interval.high < 1 - floor or interval.mid < 1 - max(floor, request.threshold):
            reason = f"slower in case {name} ({interval.mid:.3f}x, {interval.low:.3f} to {interval.high:.3f})"
            trial.checks.append(Check(name="timing.regression", passed=False, detail=reason, case=name))
            raise _Stop("rejected", reason)
    for timing in (t for result in results for t in result.timings):
        if reason := _slower_wrapper(timing):
            trial.checks.append(Check(name="timing.wrapper", passed=False, detail=reason, case=timing.case))
            raise _Stop("rejected", f"{reason} in case {timing.case}")


def _slower_wrapper(timing: CaseTiming) -> str:
    """A faster kernel in a slower wrapper is no gain: why the whole call got slower on the host's clock, or "".

    Host time is allowed to grow by less than the device saves (a second, small launch, say): a stream of calls that keeps the device
    busy is then still faster.
    """
    slower = timing.candidate_wall_us - timing.original_wall_us
    saved = _median(timing.original_us) - _median(timing.candidate_us)
    if timing.candidate_wall_us <= 1.05 * timing.original_wall_us or slower <= max(5.0, saved):
        return ""
    return f"the wrapper got slower: {timing.candidate_wall_us:.0f} us of host time for {timing.original_wall_us:.0f} us"


def _impossible(timing: CaseTiming, result: DeviceResult, new: float) -> Iterator[tuple[str, str]]:
    """What no honest program can show: (name of the check, reason)."""
    if timing.late_us > max(20.0, 0.1 * new):
        yield "late", f"work goes on {timing.late_us:.0f} us after the call's end"
    if result.write_bytes_per_s and timing.output_bytes > 2 * result.l2_bytes > 0:
        floor = timing.output_bytes / (1.25 * result.write_bytes_per_s) * 1e6
        if new < floor:
            yield "physics", f"{new:.1f} us is less than it takes to write the outputs ({floor:.1f} us)"


def _cold(request: JudgeRequest, workers: Processes, trial: _Trial) -> None:
    """First calls of all cases with an empty compile cache, each side in fresh processes; replaces the speedup by the cold one."""
    fresh = _fresh(workers)
    if fresh is None:
        trial.checks.append(Check(name="compile_cost", passed=None, detail="no fresh process can be had"))
        raise _Stop("inconclusive", "the cost of compiling was not measured")
    pairs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    compiled = {True: 0, False: 0}
    for trial_index in range(_COLD_TRIALS if request.per_case_budget_s >= _SCREENING_S else 1):
        totals: dict[bool, list[float]] = {True: [], False: []}
        order = (True, False, False, True) if trial_index % 2 == 0 else (False, True, True, False)
        for is_original in order:
            worker = fresh()
            ask = ColdRequest(case=request.case, text=request.original if is_original else request.candidate,
                              cases=request.cases or request.case.cases, seed=_seeds(1)[0])  # fmt: skip
            try:
                answer = worker.call("leadline.verify.cold:first_calls", ask, ColdResult, timeout=5 * request.timeout_s)
            except WorkerError as error:
                trial.checks.append(Check(name="compile_cost", passed=None, detail=str(error)))
                raise _Stop("inconclusive", f"the cost of compiling was not measured: {error.what}") from None
            finally:
                worker.close()
            totals[is_original].append(sum(answer.seconds.values()) * 1e6)
            compiled[is_original] = answer.compiled
        for side, values in totals.items():
            pairs[side].append((values[0], values[1]))
    interval = statistics.speedup(pairs[True], pairs[False])
    lows = [min(a) / max(b) for a, b in zip(pairs[True], pairs[False], strict=True)]  # few trials: take the worst pairing as the bound
    interval = Interval(low=min(interval.low, *lows), mid=interval.mid, high=interval.high)
    warm = trial.fields["speedup"]
    # What is bought is the first call; a later call may cost a little of it (a tuner that runs once decides for all sizes), not much.
    if warm.mid < 1 - max(_WARM_LOSS, request.threshold, trial.fields["noise"]):
        raise _Stop("rejected", f"compiles less but runs slower ({warm.mid:.3f}x)")
    trial.fields["speedup"] = interval
    first = f"first calls {_median(pairs[True]) / 1e3:.0f} ms -> {_median(pairs[False]) / 1e3:.0f} ms"
    detail = f"{first}, kernels compiled {compiled[True]} -> {compiled[False]}; warm {warm.mid:.3f}x"
    trial.checks.append(Check(name="compile_cost", passed=True, detail=detail))


def _fresh(workers: Processes) -> Callable[[], Caller] | None:
    """How to start a process that has compiled nothing: as told, or like the device worker."""
    if (given := getattr(workers, "fresh", None)) is not None:
        return given
    like = workers.device
    if not isinstance(like, Worker):
        return None
    return lambda: Worker("cold", python=like.python, environment=like.environment)


def _gain(request: JudgeRequest, trial: _Trial) -> Verdict:
    interval: Interval = trial.fields["speedup"]
    text = f"{interval.mid:.3f}x ({interval.low:.3f} to {interval.high:.3f})"
    enough = interval.low > 1 + request.threshold
    trial.checks.append(Check(name="gain", passed=enough, detail=f"{text} against a threshold of {1 + request.threshold:.2f}x"))
    if enough:
        return trial.verdict("accepted", f"faster cold start: {text}" if request.compile_cost else f"faster: {text}")
    if interval.high < 1 + request.threshold:
        return trial.verdict("rejected", f"not faster: {text}")
    return trial.verdict("inconclusive", f"within noise: {text}")


def _median(pairs: statistics.Pairs) -> float:
    values = sorted(value for pair in pairs for value in pair)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else 0.5 * (values[middle - 1] + values[middle])


def _seeds(count: int) -> tuple[int, ...]:
    return tuple(secrets.randbelow(2**31) for _ in range(count))

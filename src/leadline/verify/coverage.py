"""How much of every output the kernels store at full size, sampled without a device: half a result shows although nothing ran.

Small cases that pass in the interpreter say nothing about a size that only the named cases have. Runs in the main process.
"""

from typing import NamedTuple, Protocol, TypeVar

from leadline.collect.sampling import SampleRequest
from leadline.errors import LeadlineError
from leadline.ingest.dry import TraceRequest
from leadline.model import Check, KernelCase, Launch, LaunchSample, Record, TensorSpec, Trace

T = TypeVar("T")

MOST_CASES = 3
WHOLE = 0.99  # the original's share from which it is taken to store all of an output
ENOUGH = 0.90  # a candidate's share below this is a shortfall; what lies between is the sampler's own error
_BUDGET_S = 2.0  # sampling of one program in one case
_UNEVEN = 0.02  # shares of programs that store are themselves sampled; beyond this they are no figure to reject by
_STORES = ("store", "atomic")


class Caller(Protocol):
    def call(self, function: str, request: Record, result: type[T], *, timeout: float = 120) -> T: ...


class Side(NamedTuple):
    """One program in one case: its dry run, and the samples of its launches (of the first variant where a tuner has several)."""

    trace: Trace
    launches: tuple[Launch, ...]
    samples: tuple[LaunchSample, ...]


class Unseen(Exception):
    """One side could not be looked at. `full_size` is False when only a small case of the candidate could be traced."""

    def __init__(self, reason: str, *, full_size: bool = True) -> None:
        super().__init__(reason)
        self.full_size = full_size


def look(case: KernelCase, text: str, name: str, target: str, compiler: Caller, interpreter: Caller, timeout: float) -> Side:
    """Trace and sample `text` in the case `name`. Raises Unseen with the reason when that fails."""
    try:
        ask = TraceRequest(case=case, case_name=name, target=target, text=text)
        trace = compiler.call("leadline.ingest.dry:trace", ask, Trace, timeout=timeout)
        if trace.fallback:
            raise Unseen(trace.fallback, full_size=False)
        launches = tuple(launch for launch in trace.launches if launch.variant_index == 0)
        request = SampleRequest(case=case, launches=launches, budget_s=_BUDGET_S, text=text)
        samples = interpreter.call("leadline.collect.sampling:sample", request, tuple[LaunchSample, ...], timeout=timeout)
    except LeadlineError as error:
        raise Unseen(str(error)) from None
    return Side(trace, launches, samples)


def coverage(original: Side, candidate: Side, case: str) -> Check:
    """One check for the case: failed when an output that the original stores wholly is stored in part, None when it cannot be told."""
    old, new = outputs(original), outputs(candidate)
    if not old:
        return _check(None, "no output that the original's kernels store was found", case)
    if len(old) != len(new):
        return _check(None, f"{len(new)} outputs where the original has {len(old)}", case)
    unknown = ""
    for index, (mine, theirs) in enumerate(zip(old, new, strict=True)):
        whole, reason = share(original, mine)
        if reason or whole < WHOLE:
            unknown = unknown or reason or f"the original stores {whole * 100:.0f} % of output {index}"
            continue
        found, reason = share(candidate, theirs)
        if found >= ENOUGH:
            continue
        reason = reason or _excuse(candidate, theirs)
        if reason:
            unknown = unknown or f"output {index}: {reason}"
            continue
        text = f"writes only {found * 100:.0f} % of output {index}" if found else f"writes nothing of output {index}"
        return _check(False, f"{text} in case {case}, where the original writes all of it (sampled)", case)
    if unknown:
        return _check(None, unknown, case)
    return _check(True, f"{len(old)} outputs stored as wholly as the original stores them (sampled)", case)


def outputs(side: Side) -> tuple[TensorSpec, ...]:
    """What `launch` returns; of one that returns nothing, the inputs that its kernels store into, in the order of their names."""
    if side.trace.outputs:
        return side.trace.outputs
    stored = {
        argument.tensor.storage
        for launch, sample in zip(side.launches, side.samples, strict=False)
        for access in sample.accesses
        if access.kind in _STORES and (argument := launch.argument(access.pointer)) is not None and argument.tensor is not None
    }
    return tuple(spec for _, spec in sorted(side.trace.inputs.items()) if spec.storage in stored)


def share(side: Side, output: TensorSpec) -> tuple[float, str]:
    """(share of the output's bytes that the launches store, at most 1; why the figure cannot be relied on, or "")."""
    size = output.numel * output.itemsize
    stored, reason = 0.0, "values that the wrapper reads were assumed" if side.trace.assumptions else ""
    for launch, sample in zip(side.launches, side.samples, strict=False):
        mine = False
        for access in sample.accesses:
            if access.kind not in _STORES:
                continue
            argument = launch.argument(access.pointer)
            if argument is None or argument.tensor is None:
                reason = reason or f"line {access.line} of {launch.kernel} stores to memory that is not known"
                continue
            if argument.tensor.storage != output.storage:
                continue
            mine = True
            stored += access.unique * launch.repeats
            if access.indirect:
                reason = reason or f"where line {access.line} of {launch.kernel} stores depends on data"
            elif _uneven(access.executions, access.dead):
                reason = reason or f"not every program stores at line {access.line} of {launch.kernel}"
        holds = any(a.tensor is not None and a.tensor.storage == output.storage for a in launch.arguments)
        if sample.note and (mine or holds):
            reason = reason or f"{launch.kernel} was sampled in part: {sample.note}"
    return (min(1.0, stored / size) if size else 1.0), reason


def _uneven(executions: float, dead: float) -> bool:
    return abs(executions - round(executions)) > _UNEVEN or _UNEVEN < dead < 1 - _UNEVEN


def _excuse(side: Side, output: TensorSpec) -> str:
    """Why an output that the kernels store in part may still be whole, or ""."""
    writer = next((op for op in side.trace.host_ops if not op.view and op.name != "empty" and output.storage in op.writes), None)
    if writer is not None:
        return f"{writer.name} (line {writer.line}) writes it as well"
    if output.origin.startswith("input:"):
        return "it is an input, which holds values already"
    return ""


def _check(passed: bool | None, detail: str, case: str) -> Check:
    return Check(name="coverage", passed=passed, detail=detail, case=case)

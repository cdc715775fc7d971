"""One candidate against the original on one set of inputs: every correctness gate that needs no clock. Runs in workers."""

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from leadline.errors import KernelError
from leadline.execution.frames import original_path, user_frame
from leadline.verify import comparison
from leadline.verify.program import Outcome, Program, no_new_threads, one_line, oracle, run, tampered
from leadline.verify.records import CaseResult, Tolerances

_OTHER_SEED = 0x5EED  # of inputs that only take the place of others


class Machine(Protocol):
    """Where launches run: the interpreter or the device. `strict` machines run in one order, so that repeats agree bitwise."""

    device: str
    keep: bool
    strict: bool

    def count(self) -> int: ...
    def ghosts(self) -> contextlib.AbstractContextManager[Any]: ...
    def watch(self, inputs: dict[str, Any], allocated: list[torch.Tensor]) -> contextlib.AbstractContextManager[Any]: ...
    def violation(self) -> str: ...
    def synchronize(self) -> None: ...


class Baseline(NamedTuple):
    """The original's run on one set of inputs, and what its oracle says."""

    outcome: Outcome
    expected: Any
    exact: Any
    errors: list[comparison.Difference]
    accuracy: list[comparison.Difference]
    violation: str


class OriginalFails(Exception):
    """The original raised; whether that is the machine's or the user's fault is for the caller to say."""


def baseline(program: Program, inputs: dict[str, Any], machine: Machine, name: str) -> Baseline:
    """Run the original. Raises OriginalFails when it raises and KernelError when it disagrees with its reference."""
    outcome = _run(program.launch, inputs, machine, 0)
    if outcome.error is not None:
        raise OriginalFails(one_line(outcome.error), outcome.where)
    violation = machine.violation()
    try:
        expected, exact = oracle(program, inputs, outcome)
    except Exception as error:
        remedy = "make reference(**inputs) work on its own first"
        raise KernelError(f"the reference fails in case {name}: {one_line(error)}", where=user_frame(error), remedy=remedy) from None
    errors = comparison.compare(outcome.outputs, expected, program.tolerance)
    worst = comparison.worst(errors)
    if worst is not None and not worst.excess <= 1:
        remedy = "mend the kernel, the reference or TOLERANCE first"
        clean = run(program.launch, inputs, poison=None, synchronize=machine.synchronize)
        if clean.error is None:
            again = comparison.worst(comparison.compare(clean.outputs, expected, program.tolerance))
            if again is not None and again.excess <= 1:
                remedy = "it reads or returns memory that nothing wrote: initialise it"
        raise KernelError(f"the original disagrees with its reference in case {name}: {comparison.describe(worst)}", remedy=remedy)
    accuracy = comparison.compare(outcome.outputs, exact, program.tolerance)
    return Baseline(outcome, expected, exact, errors, accuracy, violation)


def examine(
    launch: Callable[..., Any], program: Program, base: Baseline, inputs: dict[str, Any], machine: Machine, name: str,
    *, thorough: bool, allow_numerics: bool, tolerances: Tolerances, atomics: bool = False,
) -> CaseResult:  # fmt: skip
    """Every gate on one set of inputs. `thorough` adds the other poison, a repeat and the ghost replay.

    `atomics`: the candidate uses atomics, so on a parallel machine its repeats need to agree within the tolerance only.
    """
    original_worst = comparison.worst(base.errors)
    shared: dict[str, Any] = {"original_error": original_worst.excess if original_worst else 0.0}

    def fail(gate: str, reason: str, **more: Any) -> CaseResult:
        return CaseResult(case=name, passed=False, gate=gate, reason=reason, **shared, **more)

    with no_new_threads() as threads:
        first = _run(launch, inputs, machine, 0)
    if first.error is not None:
        where = f" at {first.where}" if first.where else ""
        return fail("runs", _of_candidate(f"raises {one_line(first.error)}{where}", launch))
    if threads:
        return fail("threads", f"leaves a thread running ({threads[0]})")
    shared["launches"] = first.launches
    if machine.violation() and not base.violation:
        return fail("memory", f"{_of_candidate(machine.violation(), launch)}, which the original does not do")
    if first.launches == 0 and base.outcome.launches > 0:
        return fail("kernels", "launches no Triton kernel")
    extra = [n for n in first.mutated if n not in base.outcome.mutated]
    if extra:
        return fail("inputs", f"changes its input {extra[0]}, which the original leaves alone")
    problem = _wrong(first, base, program, machine)
    shared["error"] = problem.excess if problem else 0.0
    if problem is not None and not problem.excess <= 1:
        again = _run(launch, inputs, machine, 1)
        if again.error is None and not problem.problem and not comparison.same(first.outputs, again.outputs):
            return fail("poison", f"leaves elements unwritten: {comparison.describe(problem)}")
        return fail("matches", comparison.describe(problem))
    if not allow_numerics:
        accuracy = comparison.compare(first.outputs, base.exact, program.tolerance)
        text = comparison.less_accurate(accuracy, base.accuracy, comparison.leaves(first.outputs), tolerances)
        if text:
            return fail("accuracy", f"less accurate than the original: {text}")
    if thorough:
        verdict = _repeat(launch, program, base, first, inputs, machine, name, fail, atomics)
        verdict = verdict or _stale(launch, program, base, inputs, machine, name, fail)
        if verdict is not None:
            return verdict
    changed = tampered()
    if changed:
        return fail("tampering", f"replaced {changed[0]}")
    return CaseResult(case=name, passed=True, **shared)


def _of_candidate(text: str, launch: Callable[..., Any]) -> str:
    """`text` with places in the candidate called so: its file goes by the original's name, whose lines are other lines."""
    code = getattr(launch, "__code__", None)
    if code is None:
        return text
    name = re.escape(os.path.basename(original_path(code.co_filename)))
    return re.sub(rf" at (?:\S*/)?{name}:(\d+)", r" at line \1 of the candidate", text)


def _run(
    launch: Callable[..., Any], inputs: dict[str, Any], machine: Machine, poison: int, *, earlier: dict[str, Any] | None = None
) -> Outcome:
    return run(
        launch, inputs, poison=poison, keep=machine.keep, counter=machine.count, around=machine.watch, synchronize=machine.synchronize,
        earlier=earlier,
    )  # fmt: skip


def _wrong(first: Outcome, base: Baseline, program: Program, machine: Machine) -> comparison.Difference | None:
    differences = comparison.compare(first.outputs, base.expected, program.tolerance)
    for name in base.outcome.mutated:
        # what the original leaves in its inputs is part of what it does
        differences += comparison.compare(first.inputs[name], base.outcome.inputs[name], _loosest(program.tolerance))
    return comparison.worst(differences)


def _loosest(declared: Any) -> Any:
    if isinstance(declared, (list, tuple)) and declared:
        return {key: max(float(item.get(key, 0.0)) for item in declared) for key in ("atol", "rtol")}
    return declared


def _stale(
    launch: Callable[..., Any], program: Program, base: Baseline, inputs: dict[str, Any], machine: Machine, name: str,
    fail: Callable[..., CaseResult],
) -> CaseResult | None:  # fmt: skip
    """Call it on tensors that were seen before and hold other values now: a result kept by identity or address is an old one.

    What the original does wrong here as well is no fault of the candidate.
    """
    other = program.inputs(name, machine.device, _OTHER_SEED)
    if not comparison.alike(other, inputs):
        return None
    got = _run(launch, inputs, machine, 0, earlier=other)
    if got.error is None and _agrees(got, base, program):
        return None
    honest = _run(program.launch, inputs, machine, 0, earlier=other)
    if honest.error is not None or not _agrees(honest, base, program):
        return None
    if got.error is not None:
        return fail("stale", f"raises {one_line(got.error)} when called again on the same tensors with other values")
    return fail("stale", "returns an old result when the same tensors hold other values")


def _agrees(outcome: Outcome, base: Baseline, program: Program) -> bool:
    worst = comparison.worst(comparison.compare(outcome.outputs, base.expected, program.tolerance))
    return worst is None or worst.excess <= 1


def _scratch(
    launch: Callable[..., Any], program: Program, first: Outcome, inputs: dict[str, Any], machine: Machine, name: str
) -> bool:
    """Whether an unchanged result comes from a buffer that its kernels filled in an earlier call: after a call on other inputs,
    kernels that do nothing then give the result of those."""
    filled = _run(launch, program.inputs(name, machine.device, _OTHER_SEED), machine, 0)
    if filled.error is not None or comparison.same(filled.outputs, first.outputs):
        return False
    with machine.ghosts():
        again = _run(launch, inputs, machine, 0)
    return again.error is None and comparison.same(again.outputs, filled.outputs)


def _repeat(
    launch: Callable[..., Any], program: Program, base: Baseline, first: Outcome, inputs: dict[str, Any], machine: Machine, name: str,
    fail: Callable[..., CaseResult], atomics: bool,
) -> CaseResult | None:  # fmt: skip
    second = _run(launch, inputs, machine, 1)
    if second.error is not None:
        return fail("repeat", f"raises {one_line(second.error)} when freed memory holds something else")
    if not comparison.same(first.outputs, second.outputs):
        original = _run(program.launch, inputs, machine, 1)
        stable = original.error is None and comparison.same(original.outputs, base.outcome.outputs)
        worst = _wrong(second, base, program, machine)
        if (machine.strict and stable) or (worst is not None and not worst.excess <= 1):
            return fail("poison", "returns elements that nothing wrote, or differs from run to run")
        if stable and not atomics:
            third = _run(launch, inputs, machine, 0)
            if comparison.same(third.outputs, first.outputs):
                return fail("poison", "its result depends on memory that nothing wrote")
            return fail("repeat", "differs from run to run where the original does not, and uses no atomics")
    with machine.ghosts():
        ghost = _run(launch, inputs, machine, 0)
        replay = ghost.error is None and comparison.leaves(ghost.outputs) and comparison.same(ghost.outputs, first.outputs)
        if replay:
            honest = _run(program.launch, inputs, machine, 0)
            replay = honest.error is not None or not comparison.same(honest.outputs, base.outcome.outputs)
    if replay and comparison.shares_memory(ghost.outputs, first.outputs):
        return fail("aliasing", "returns the memory of an earlier result, which the original does not do")
    if replay and not _scratch(launch, program, first, inputs, machine, name):
        return fail("ghost", "its result does not change when its kernels do nothing")
    return None

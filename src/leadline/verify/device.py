"""Correctness and time of a candidate on the real device. Runs in a device worker."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from leadline.collect.device import CudaDevice, Launches, launches
from leadline.errors import KernelError
from leadline.verify import clock, comparison
from leadline.verify.program import Program, load_launch, load_original, one_line, run, tampered
from leadline.verify.records import CaseResult, CaseTiming, DeviceRequest, DeviceResult
from leadline.verify.trial import OriginalFails, baseline, examine

_SETS = 4  # input sets that timed calls rotate through
_SHARE = 0.3  # of the free memory that they may take
_KEPT_SHARE = 0.1  # of the free memory that outputs kept for re-verification may take


class Gpu:
    """The device as a `trial.Machine`: atomics may reorder, so repeats agree within the tolerance."""

    device = "cuda"
    keep = False  # every allocation is poisoned; keeping all of them could fill the device
    strict = False

    def __init__(self, device: CudaDevice, hook: Launches) -> None:
        self._device, self._hook = device, hook

    def count(self) -> int:
        return self._hook.count

    def ghosts(self) -> contextlib.AbstractContextManager[Any]:
        return self._hook.ghosts()

    def watch(self, inputs: dict[str, Any], allocated: list[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def violation(self) -> str:
        return ""  # a stray access raises here, or goes unseen; the interpreter looks for those

    def synchronize(self) -> None:
        self._device.synchronize()


def measure(request: DeviceRequest) -> DeviceResult:
    """Check `candidate` on every case asked for, then time it against the original. An empty `candidate` runs the original alone.

    Raises EvidenceError where there is no device, KernelError when the original fails or disagrees with its reference.
    """
    device = CudaDevice()
    machine = Gpu(device, launches())
    return measure_on(device, machine, request, write_rate=device.write_bytes_per_s())


def measure_on(device: Any, machine: Any, request: DeviceRequest, *, write_rate: float = 0.0) -> DeviceResult:
    """`measure` on any device and machine: the seam that tests use."""
    program = load_original(request.case, request.original)
    launch, refused = None, ("", "")
    if request.candidate:
        try:
            launch = load_launch(request.case, request.candidate)
        except (Exception, SystemExit) as error:
            refused = ("imports", f"cannot be imported: {one_line(error)}")
        else:
            changed = tampered()
            refused = ("tampering", f"replaced {changed[0]}") if changed else refused
    checked: list[CaseResult] = []
    timed: list[CaseTiming] = []
    for name in request.cases or tuple(program.cases):
        start = time.perf_counter()
        result = _check(program, launch, refused, machine, name, request)
        checked.append(msgspec.structs.replace(result, seconds=time.perf_counter() - start))
        if not result.passed:
            break
        if request.timing and launch is not None:
            timing, problem = _time(program, launch, device, machine, name, request)
            timed.append(timing)
            if problem is not None:
                checked.append(problem)
                break
    return DeviceResult(
        device=device.name, correctness=tuple(checked), timings=tuple(timed), write_bytes_per_s=write_rate, l2_bytes=device.l2_bytes,
        clocks_mhz=device.clocks_mhz(),
    )  # fmt: skip


def _check(program: Program, launch: Any, refused: tuple[str, str], machine: Any, name: str, request: DeviceRequest) -> CaseResult:
    result = CaseResult(case=name, passed=True)
    for i, seed in enumerate(request.seeds or (0,)):
        inputs = program.inputs(name, machine.device, seed)
        if i == 0:  # an autotuner's trial runs must not add to the outputs that are compared
            for function in (program.launch, launch):
                if function is not None:
                    run(function, inputs, poison=None, synchronize=machine.synchronize)
        try:
            base = baseline(program, inputs, machine, name)
        except OriginalFails as error:
            raise KernelError(f"the original fails in case {name}: {error.args[0]}", where=error.args[1]) from None
        if refused[0]:
            return CaseResult(case=name, passed=False, gate=refused[0], reason=refused[1])
        if launch is None:
            continue
        result = examine(
            launch, program, base, inputs, machine, name,
            thorough=i == 0, allow_numerics=request.allow_numerics, tolerances=request.tolerances, atomics="atomic_" in request.candidate,
        )  # fmt: skip
        if not result.passed:
            break
    return result


class _Sets:
    """Input sets with their pristine copies; what a program changes is put back before the next timed call."""

    def __init__(self, program: Program, name: str, device: str, seeds: list[int], room: float) -> None:
        self._program, self._name, self._device = program, name, device
        self.live: list[dict[str, Any]] = []
        self._clean: list[dict[str, Any] | None] = []
        for seed in seeds:
            inputs = program.inputs(name, device, seed)
            self.live.append(inputs)
            self._clean.append(None)
            size = sum(t.untyped_storage().nbytes() for t in comparison.tensors(inputs))
            if size * (len(self.live) + 1) > room:
                break
        self._mutated: tuple[str, ...] = ()

    def expect_changes(self, names: tuple[str, ...]) -> None:
        """Keep pristine copies of these inputs."""
        self._mutated = names
        if names:
            self._clean = [comparison.copy_tree({n: inputs[n] for n in names}) for inputs in self.live]

    def restore(self, index: int) -> None:
        clean = self._clean[index]
        if clean is not None:
            for name in self._mutated:
                for old, now in zip(comparison.tensors(clean[name]), comparison.tensors(self.live[index][name]), strict=True):
                    now.copy_(old)

    def renew(self, index: int, seed: int) -> None:
        """Other values at the same addresses, so that an answer remembered by address is wrong."""
        new = self._program.inputs(self._name, self._device, seed)
        for name, value in new.items():
            pairs = list(zip(comparison.tensors(self.live[index][name]), comparison.tensors(value), strict=False))
            if any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
                self.live[index] = new  # sizes depend on the values: fresh tensors instead
                break
            for now, fresh in pairs:
                now.copy_(fresh)
            if not pairs:
                self.live[index][name] = value
        self.expect_changes(self._mutated)


def _time(
    program: Program, launch: Callable[..., Any], device: Any, machine: Any, name: str, request: DeviceRequest
) -> tuple[CaseTiming, CaseResult | None]:
    started = time.perf_counter()
    free = device.free_bytes() if hasattr(device, "free_bytes") else 1 << 30
    seeds = [request.order_seed + 101 * i for i in range(_SETS)]
    sets = _Sets(program, name, machine.device, seeds, _SHARE * free)
    before = comparison.copy_tree(sets.live[0])
    outputs = program.launch(**sets.live[0])
    machine.synchronize()
    mutated = comparison.changed(before, sets.live[0])
    sets.live[0] = before
    sets.expect_changes(mutated)
    output_bytes = sum(t.numel() * t.element_size() for t in comparison.tensors(outputs))
    del outputs

    def call(function: Callable[..., Any]) -> Callable[[int], Any]:
        return lambda index: function(**sets.live[index])

    race = clock.race(
        device, clock.Side(call(program.launch), sets.restore), clock.Side(call(launch), sets.restore), len(sets.live),
        budget_s=request.per_case_budget_s, seed=request.order_seed, before=lambda index: sets.renew(index, request.order_seed + 7919),
        keep=max(1, min(clock.KEPT, int(_KEPT_SHARE * free / max(output_bytes, 1)))),
    )  # fmt: skip
    timing = CaseTiming(
        case=name, original_us=race.original, candidate_us=race.candidate, original_wall_us=race.original_wall_us,
        candidate_wall_us=race.candidate_wall_us, late_us=race.late_us, output_bytes=output_bytes, seconds=time.perf_counter() - started,
    )  # fmt: skip
    return timing, _verify_kept(program, race.kept, sets, machine, name, mutated)


def _verify_kept(
    program: Program, kept: tuple[tuple[int, Any], ...], sets: _Sets, machine: Any, name: str, mutated: tuple[str, ...]
) -> CaseResult | None:
    """Answers of timed calls against the original's on the same inputs; None when all are right or the kernel works in place."""
    changed = tampered()
    if changed:
        return CaseResult(case=name, passed=False, gate="tampering", reason=f"replaced {changed[0]}")
    if mutated:
        return None
    for index, output in kept:
        expected = program.launch(**sets.live[index])
        machine.synchronize()
        worst = comparison.worst(comparison.compare(output, expected, program.tolerance))
        # The original is within one tolerance of its reference, so is an honest candidate: two apart at most.
        if worst is not None and not worst.excess <= 2:
            return CaseResult(case=name, passed=False, gate="replay", reason=f"a timed call was wrong: {comparison.describe(worst)}")
    return None

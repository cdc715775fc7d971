"""The dry run: what `launch` does for a case, as the JIT would see it, with no device and no data.

The requests may be built anywhere; `trace` and `describe` run in a worker.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from leadline.errors import KernelError, LeadlineError
from leadline.execution.frames import one_line, user_frame
from leadline.model import KernelCase, Record, TensorSpec, Trace

if TYPE_CHECKING:
    from leadline.ingest.program import Program


class TraceRequest(Record, frozen=True):
    """Trace `case_name` of `case` for `target`; `text` replaces the content of the case's file."""

    case: KernelCase
    case_name: str
    target: str = "cuda:90"
    text: str | None = None


class CaseNames(Record, frozen=True):
    """What only the imported file tells: names of its cases, whether it has a reference, tolerances as (atol, rtol).

    `tolerances` has one entry per output or one for all; `by_dtype` is keyed by torch's dtype name. Both empty: the defaults apply.
    """

    cases: tuple[str, ...]
    small: tuple[str, ...] = ()
    has_reference: bool = False
    tolerances: tuple[tuple[float, float], ...] = ()
    by_dtype: dict[str, tuple[float, float]] = {}
    arguments: dict[str, str] = {}  # case -> its keyword arguments as text


def describe(request: TraceRequest) -> CaseNames:
    """Import the file and say what it offers. Raises KernelError for whatever is missing or malformed."""
    from leadline.ingest.program import load_program

    program = load_program(request.case, request.text)
    tolerances, by_dtype = read_tolerance(program.tolerance, request.case.case_file or request.case.path)
    return CaseNames(
        cases=tuple(program.cases), small=tuple(program.small), has_reference=program.reference is not None, tolerances=tolerances,
        by_dtype=by_dtype,
        arguments={name: _as_text(given) for name, given in (program.cases | program.small).items()},
    )  # fmt: skip


def _as_text(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in arguments.items())[:500]


def read_tolerance(value: Any, where: str = "") -> tuple[tuple[tuple[float, float], ...], dict[str, tuple[float, float]]]:
    """TOLERANCE as (atol, rtol) per output and per dtype: a dict of rtol and atol, a list of them, or a dict from dtypes to them."""
    try:
        if value is None:
            return (), {}
        if isinstance(value, (list, tuple)):
            return tuple(_pair(v) for v in value), {}
        if value and all(isinstance(v, dict) for v in value.values()):
            return (), {str(k).removeprefix("torch."): _pair(v) for k, v in value.items()}
        return (_pair(value),), {}
    except (TypeError, ValueError, KeyError, AttributeError):
        remedy = "write TOLERANCE = dict(rtol=..., atol=...), or a list of them, one per output"
        raise KernelError("TOLERANCE is not understood", where=where, remedy=remedy) from None


def _pair(value: Any) -> tuple[float, float]:
    unknown = set(value) - {"atol", "rtol"}
    if unknown:
        raise KeyError(*unknown)
    return float(value.get("atol", 0.0)), float(value.get("rtol", 0.0))


def trace(request: TraceRequest) -> Trace:
    """The launches, host operations and reads of one case.

    Full size first, with fake tensors; then with inputs made for real when they are small; at last a small case with real tensors
    and no kernel run, which `fallback` says. Raises KernelError (with the user's line) when the file itself fails.
    """
    from leadline.ingest.program import load_program

    started = time.perf_counter()
    program = load_program(request.case, request.text)
    program.arguments(request.case_name)
    reasons: list[str] = []
    failure: KernelError | None = None
    full = [_Attempt(request, program, way) for way in ("fake", "real inputs", "zero")]
    for attempt in (*full, *_small_attempts(request, program)):
        try:
            found = attempt.run()
        except _NotThisWay as reason:
            reasons.append(str(reason))
            failure = failure or reason.failure
            continue
        return _finish(found, reasons, attempt, request, started)
    raise failure or KernelError(f"cannot be traced: {reasons[-1]}", where=request.case.path)


def _small_attempts(request: TraceRequest, program: "Program") -> Iterator["_Attempt"]:
    for name in dict.fromkeys((*program.small, request.case_name)):
        yield _Attempt(request, program, "real", name)


def _finish(found: Trace, reasons: list[str], attempt: "_Attempt", request: TraceRequest, started: float) -> Trace:
    import msgspec

    why = ""
    if attempt.way == "real" and attempt.case_name != request.case_name:
        why = f"small case {attempt.case_name} stands in: {reasons[-1] if reasons else ''}"
    return msgspec.structs.replace(found, fallback=why, seconds=time.perf_counter() - started)


class _NotThisWay(Exception):
    """This way of tracing does not work. `failure` is what to tell the user when no other does either."""

    def __init__(self, reason: str, failure: KernelError | None = None) -> None:
        super().__init__(reason)
        self.failure = failure


class _Attempt:
    """One way to run a case: "fake" (no data at all), "real inputs" (make_inputs on the CPU, then fakes), "zero" (fake, and values
    that make_inputs reads of random data are 0), "real" (all on the CPU)."""

    def __init__(self, request: TraceRequest, program: "Program", way: str, case_name: str = "") -> None:
        self.request, self.program, self.way = request, program, way
        self.case_name = case_name or request.case_name

    def run(self) -> Trace:
        from leadline.execution.driver import standing_in
        from leadline.execution.target import parse_target
        from leadline.ingest.device_stub import allow_fake_cuda, one_device
        from leadline.ingest.operations import FakeMode, HostFunctions, Operations, lists_at_once
        from leadline.ingest.tensors import KnownValues, Storages

        storages, values = Storages(), KnownValues()
        fake = None if self.way == "real" else FakeMode(allow_non_fake_inputs=True)
        if fake is not None and not allow_fake_cuda():
            raise _NotThisWay("this build of torch cannot make fake tensors of a device")
        operations = Operations(self.program.file, storages, values, fake=fake)
        operations.zero_in_inputs = self.way == "zero"
        with contextlib.ExitStack() as stack:
            stack.enter_context(standing_in(self.request.target))
            stack.enter_context(one_device(parse_target(self.request.target)))
            stack.enter_context(lists_at_once(operations))
            if self.way == "real inputs":
                inputs = self._as_fakes(self._real_inputs(), fake, values)
            for mode in (fake, operations, HostFunctions(operations)):
                if mode is not None:
                    stack.enter_context(mode)
            if self.way != "real inputs":
                inputs = self._make_inputs("cuda" if fake is not None else "cpu")
            return self._launch(inputs, operations, storages)

    def _launch(self, inputs: dict[str, Any], operations: Any, storages: Any) -> Trace:
        import torch
        from torch.utils._pytree import tree_flatten

        from leadline.ingest.launches import LaunchRecorder

        specs: dict[str, TensorSpec] = {}
        for name, tensor in _tensors(inputs):
            storages.origins[storages.number(tensor)] = f"input:{name}"
            specs[name] = storages.spec(tensor)
            operations.assumed_count = max(operations.assumed_count, tensor.numel())
        self._fits(inputs)
        recorder = LaunchRecorder(self.program.file, storages, operations)
        operations.recording = True
        with recorder.active(), self._explained("launch"):
            result = self.program.launch(**inputs)
        operations.recording = False
        outputs = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
        return Trace(
            case=self.case_name, launches=tuple(recorder.launches), inputs=specs, outputs=tuple(storages.spec(t) for t in outputs),
            host_ops=tuple(operations.host_ops), values_read=tuple(operations.reads), assumptions=tuple(operations.assumptions),
        )  # fmt: skip

    def _fits(self, inputs: dict[str, Any]) -> None:
        """KernelError when launch cannot be called with these inputs, whatever is in them."""
        import inspect

        try:
            signature = inspect.signature(self.program.launch)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(**inputs)
        except TypeError as error:
            remedy = f"launch is called with the names that make_inputs returns: {', '.join(map(str, inputs))}"
            raise KernelError(f"launch does not take its inputs: {error}", where=self.request.case.path, remedy=remedy) from None

    def _make_inputs(self, device: str) -> dict[str, Any]:
        arguments = self.program.arguments(self.case_name)
        with self._explained("make_inputs"):
            inputs = self.program.make_inputs(device=device, seed=0, **arguments)
        if not isinstance(inputs, dict):
            remedy = "return a dict from parameter names of launch to tensors or values"
            raise KernelError(f"make_inputs returned {type(inputs).__name__}", where=self.request.case.path, remedy=remedy)
        return inputs

    def _real_inputs(self) -> dict[str, Any]:
        from leadline.ingest.operations import HostFunctions, Operations
        from leadline.ingest.tensors import KnownValues, Storages

        counting = Operations(self.program.file, Storages(), KnownValues(), fake=None)
        with counting, HostFunctions(counting):
            return self._make_inputs("cpu")

    def _as_fakes(self, inputs: dict[str, Any], fake: Any, values: Any) -> dict[str, Any]:
        import torch
        from torch.utils._pytree import tree_map

        from leadline.ingest.tensors import KNOWN_LIMIT

        def convert(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            with fake:
                made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cuda")
            if leaf.numel() <= KNOWN_LIMIT:
                values.set(made, leaf)
            return made

        return tree_map(convert, inputs)

    @contextlib.contextmanager
    def _explained(self, function: str) -> Iterator[None]:
        """Turn what user code raises into a reason to try another way, and into the error to show when none works."""
        from leadline.ingest.operations import TooLarge, UnknownValue

        try:
            yield
        except (UnknownValue, TooLarge) as error:
            text = str(error) or "making the inputs for real needs too much memory"
            raise _NotThisWay(text) from None
        except LeadlineError:
            raise
        except (Exception, SystemExit) as error:
            where = user_frame(error) or self.request.case.path
            text = f"{function} raised {type(error).__name__}: {one_line(error)}"
            call = "launch(**make_inputs(...))" if function == "launch" else "make_inputs(device=..., seed=0, **case)"
            failure = KernelError(text, where=where, remedy=f"make {call} work on its own first")
            raise _NotThisWay(f"{text} (at {where})", failure) from None


def _tensors(inputs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """All tensors of the inputs; those inside lists and dicts are called "x[0]" or "x[name]"."""
    import torch

    def walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            for index, part in enumerate(value):
                yield from walk(f"{name}[{index}]", part)
        elif isinstance(value, dict):
            for key, part in value.items():
                yield from walk(f"{name}[{key}]", part)

    for name, value in inputs.items():
        yield from walk(name, value)

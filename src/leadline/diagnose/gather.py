"""Gets evidence for one case: starts the workers, asks them, and turns what cannot be had into `Unavailable`.

The engine sees only the `Gatherer` protocol, so recorded evidence can stand in for all of this.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from leadline.backends.base import Backend, CompileRequest, ExplainRequest, Explanation, ProbeRequest, select
from leadline.collect import ceilings, floor, source
from leadline.collect.sampling import SampleRequest
from leadline.diagnose.dependencies import local_texts
from leadline.diagnose.timings import matched
from leadline.errors import KernelError, LeadlineError, WorkerDied, WorkerError, WorkerTimeout
from leadline.execution.device import exclusive_device
from leadline.execution.store import Store
from leadline.execution.worker import Worker
from leadline.ingest.dry import TraceRequest
from leadline.model import (
    Ceilings,
    Compiled,
    KernelCase,
    Launch,
    LaunchCost,
    LaunchSample,
    Limit,
    Probe,
    ProbeOutcome,
    Profile,
    Record,
    SourceEdit,
    SourceFacts,
    Trace,
    Unavailable,
    content_hash,
)

T = TypeVar("T")

TRACE_TIMEOUT_S = 60.0  # a trace takes seconds: nothing is computed unless inputs must be made for real
COMPILE_TIMEOUT_S = 60.0  # the assembler can take minutes over a kernel that spills everything; such an answer comes too late


class Gatherer(Protocol):
    """What the engine may ask for. Every answer is a record; absent evidence is an `Unavailable`."""

    def source(self, trace: Trace | None) -> SourceFacts: ...
    def trace(self, case_name: str) -> Trace: ...
    def samples(self, launches: tuple[Launch, ...]) -> tuple[LaunchSample, ...] | Unavailable: ...
    def ceilings(self) -> Ceilings: ...
    def limit(self, trace: Trace, samples: dict[int, LaunchSample]) -> Limit: ...
    def cost(self, launch: Launch, sample: LaunchSample) -> LaunchCost: ...
    def profile(self, case_name: str) -> Profile | Unavailable: ...
    def compile(self, launches: Iterable[Launch]) -> dict[int, Compiled | Unavailable]: ...
    def explain(self, launch: Launch) -> Explanation | Unavailable: ...
    def probe(self, probe: Probe, launch: Launch) -> ProbeOutcome | Unavailable: ...


class Workers:
    """The processes of a session, started when first used, shared by all rounds."""

    def __init__(self, *, folder: str, device: bool, home: str | os.PathLike[str] = ".") -> None:
        # A candidate is written elsewhere than the user's file, but imports its neighbours all the same.
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        common = {"PYTHONPATH": path, "TRITON_DEFAULT_FP_FUSION": "1"}
        self.compile = Worker("compile", environment=common)
        # The judge repairs the interpreter and runs candidates in its process; addresses are sampled in another, which nothing has touched.
        self.interpret = Worker("interpret", environment={**common, "TRITON_INTERPRET": "1"})
        self.sample = Worker("sample", environment={**common, "TRITON_INTERPRET": "1"})
        self.device = Worker("device", environment=common) if device else None
        self._common, self._home, self.folder, self.waited_s = common, home, folder, 0.0

    def wake(self, case: KernelCase) -> None:
        """Let the sampler's process import torch while the compiler's does: together they take as long as one."""
        threading.Thread(target=self._wake, args=(case,), daemon=True).start()

    def _wake(self, case: KernelCase) -> None:
        nothing = SampleRequest(case=case, launches=())
        with contextlib.suppress(LeadlineError):  # whoever needs the worker meets the same error and reports it
            self.sample.call("leadline.collect.sampling:sample", nothing, tuple[LaunchSample, ...], timeout=60)

    def fresh(self) -> Worker:
        """A device worker that shares nothing with the others, for timing first calls."""
        return Worker("cold", environment=self._common)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """The device to ourselves. Time spent waiting for it is kept in `waited_s`: it is not the command's own."""
        if self.device is None:
            yield
            return
        asked = time.monotonic()
        with exclusive_device(self._home):
            self.waited_s += time.monotonic() - asked
            yield

    def close(self) -> None:
        for worker in (self.compile, self.interpret, self.sample, self.device):
            if worker is not None:
                worker.close()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LiveGatherer:
    """Asks the workers. Compiles, explanations and probes are kept in the store by the content of the request."""

    def __init__(self, case: KernelCase, workers: Workers, store: Store, *, target: str, versions: dict[str, str]) -> None:
        self.case, self.workers, self.store, self.target = case, workers, store, target
        self.backend: Backend = select(target)
        self._versions = content_hash({**versions, "leadline": _code()})
        self._device_ceilings: Ceilings | None = None
        self._case_name = ""  # the case being diagnosed: the first one traced
        self._trace: Trace | None = None  # its launches, as traced

    def source(self, trace: Trace | None) -> SourceFacts:
        files: dict[str, str] = {}
        for launch in trace.launches if trace else ():
            if launch.kernel_file not in files and launch.kernel_file != self.case.path:
                try:
                    files[launch.kernel_file] = Path(launch.kernel_file).read_text(encoding="utf-8")
                except OSError:
                    continue
        return source.read(self.case, files)

    def trace(self, case_name: str) -> Trace:
        self._case_name = self._case_name or case_name
        request = TraceRequest(case=self.case, case_name=case_name, target=self.target)
        try:
            trace = self.workers.compile.call("leadline.ingest.dry:trace", request, Trace, timeout=TRACE_TIMEOUT_S)
        except (WorkerDied, WorkerTimeout) as error:
            # Ours only reads and records; what ends or hangs the process is the user's make_inputs or launch.
            ended = f"made no answer within {TRACE_TIMEOUT_S:g} s" if isinstance(error, WorkerTimeout) else "ended the process"
            raise KernelError(
                f"make_inputs or launch of case {case_name} {ended}",
                where=error.where or self.case.path,
                remedy="make launch(**make_inputs(...)) return on its own first",
            ) from None
        if case_name == self._case_name:
            self._trace = trace
        return trace

    def samples(self, launches: tuple[Launch, ...]) -> tuple[LaunchSample, ...] | Unavailable:
        request = SampleRequest(case=self.case, launches=launches)
        try:
            return self.workers.sample.call("leadline.collect.sampling:sample", request, tuple[LaunchSample, ...], timeout=60)
        except WorkerError as error:
            return Unavailable(what="addresses of sampled programs", reason=error.what, remedy="see leadline doctor")
        except KernelError as error:
            return Unavailable(what="addresses of sampled programs", reason=str(error), remedy="run the small cases in the interpreter")

    def ceilings(self) -> Ceilings:
        return self._device_ceilings or ceilings.predicted(self.target)

    def limit(self, trace: Trace, samples: dict[int, LaunchSample]) -> Limit:
        return floor.limit(trace, list(samples.values()), self.ceilings())

    def cost(self, launch: Launch, sample: LaunchSample) -> LaunchCost:
        return floor.launch_cost(launch, sample, self.ceilings())

    def profile(self, case_name: str) -> Profile | Unavailable:
        if self.workers.device is None:
            return Unavailable(what="device timing (level 2)", reason="no CUDA device here", remedy="run on a machine with a device")
        from leadline.collect.timing_request import ProfileRequest

        request = ProfileRequest(case=self.case, case_name=case_name, store=str(self.store.folder))
        try:
            with self.workers.exclusive():
                profile = self.workers.device.call("leadline.collect.timing:profile", request, Profile, timeout=180)
        except WorkerError as error:
            return Unavailable(what="device timing (level 2)", reason=error.what, remedy="see leadline doctor")
        self._device_ceilings = profile.ceilings
        return matched(profile, self._trace) if self._trace is not None and case_name == self._case_name else profile

    def compile(self, launches: Iterable[Launch]) -> dict[int, Compiled | Unavailable]:
        out: dict[int, Compiled | Unavailable] = {}
        for launch in launches:
            request = CompileRequest(launch=launch, target=self.target, store=str(self.store.folder / "blobs"))
            out[launch.index] = self._kept("compile", request, launch, Compiled)
        return out

    def explain(self, launch: Launch) -> Explanation | Unavailable:
        return self._kept("explain", ExplainRequest(launch=launch, target=self.target), launch, Explanation)

    def probe(self, probe: Probe, launch: Launch) -> ProbeOutcome | Unavailable:
        edited = None
        for edit in (g for g in probe.grants if isinstance(g, SourceEdit)):
            try:
                edited = self._edited_launch(edit, launch)
            except (KernelError, WorkerError) as error:
                return Unavailable(what=f"probe: {probe.claim}", reason=f"the edited file cannot be launched: {error}")
        request = ProbeRequest(probe=probe, launch=launch, target=self.target, edited=edited)
        return self._kept("probe", request, launch, ProbeOutcome)

    def _edited_launch(self, edit: SourceEdit, launch: Launch) -> Launch | None:
        """The launch of the same kernel that the edited wrapper makes; None when it launches no kernel of that name."""
        assert self._case_name
        request = TraceRequest(case=self.case, case_name=self._case_name, target=self.target, text=edit.text)
        trace = self.workers.compile.call("leadline.ingest.dry:trace", request, Trace, timeout=60)
        same = [x for x in trace.launches if x.kernel == launch.kernel and x.variant == launch.variant]
        return min(same, key=lambda x: abs(x.index - launch.index)) if same else None

    def _kept(self, what: str, request: Record, launch: Launch, result: type[T]) -> T | Unavailable:
        """Call the back-end's function for `what`, or return its stored answer to the same request on the same texts."""
        own = launch.kernel_file == self.case.path
        texts = local_texts(launch.kernel_file, self.case.source if own else None, folder=self.workers.folder)
        key = f"{what}:{content_hash(request, 32)}:{content_hash(texts, 32)}:{self._versions}"
        kept = self.store.cached(key)
        if kept is not None:
            return msgspec.msgpack.decode(kept, type=result)
        try:
            answer = self.workers.compile.call(self.backend.functions[what], request, result, timeout=COMPILE_TIMEOUT_S)
        except WorkerError as error:
            return Unavailable(what=f"{what} of {launch.kernel}", reason=error.what, remedy="see leadline doctor")
        if not getattr(answer, "error", ""):  # what failed may be mended tomorrow, by an update of the compiler's surroundings or ours
            self.store.remember(key, msgspec.msgpack.encode(answer))
        return answer


@cache
def _code() -> str:
    """What our own answers depend on: the texts of the packages that compile and read the compiler.

    A version number would not do for a checkout that is being worked on.
    """
    package = Path(__file__).parent.parent
    files = sorted(f for room in ("backends", "ir", "model") for f in (package / room).rglob("*.py"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()

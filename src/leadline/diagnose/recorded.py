"""Evidence written down and played back: the engine and every rule run on it without a compiler, a device or the user's packages."""

from collections.abc import Iterable

import msgspec

from leadline.backends.base import Explanation
from leadline.collect import floor, source
from leadline.diagnose.gather import Gatherer
from leadline.errors import EvidenceError
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
    SourceFacts,
    Trace,
    Unavailable,
    content_hash,
)


class Recording(Record, frozen=True):
    """All answers a diagnosis was given. `probes` is keyed by the content of the probe, `compiled` and `explained` by launch."""

    case: KernelCase
    target: str
    ceilings: Ceilings
    triton: str = ""
    traces: dict[str, Trace] = {}
    samples: tuple[LaunchSample, ...] = ()
    compiled: dict[int, Compiled] = {}
    explained: dict[int, Explanation] = {}
    probes: dict[str, ProbeOutcome] = {}
    profile: Profile | None = None


class RecordingGatherer:
    """Passes everything on to `live` and keeps the answers; `recording()` is what was kept."""

    def __init__(self, live: Gatherer, case: KernelCase, target: str) -> None:
        self.live, self.case, self.target = live, case, target
        self._traces: dict[str, Trace] = {}
        self._samples: tuple[LaunchSample, ...] = ()
        self._compiled: dict[int, Compiled] = {}
        self._explained: dict[int, Explanation] = {}
        self._probes: dict[str, ProbeOutcome] = {}
        self._profile: Profile | None = None

    def source(self, trace: Trace | None) -> SourceFacts:
        return self.live.source(trace)

    def trace(self, case_name: str) -> Trace:
        self._traces[case_name] = self.live.trace(case_name)
        return self._traces[case_name]

    def samples(self, launches: tuple[Launch, ...]) -> tuple[LaunchSample, ...] | Unavailable:
        answer = self.live.samples(launches)
        if not isinstance(answer, Unavailable):
            self._samples = answer
        return answer

    def ceilings(self) -> Ceilings:
        return self.live.ceilings()

    def limit(self, trace: Trace, samples: dict[int, LaunchSample]) -> Limit:
        return self.live.limit(trace, samples)

    def cost(self, launch: Launch, sample: LaunchSample) -> LaunchCost:
        return self.live.cost(launch, sample)

    def profile(self, case_name: str) -> Profile | Unavailable:
        answer = self.live.profile(case_name)
        self._profile = answer if isinstance(answer, Profile) else None
        return answer

    def compile(self, launches: Iterable[Launch]) -> dict[int, Compiled | Unavailable]:
        answers = self.live.compile(launches)
        self._compiled |= {i: a for i, a in answers.items() if isinstance(a, Compiled)}
        return answers

    def explain(self, launch: Launch) -> Explanation | Unavailable:
        answer = self.live.explain(launch)
        if isinstance(answer, Explanation):
            self._explained[launch.index] = answer
        return answer

    def probe(self, probe: Probe, launch: Launch) -> ProbeOutcome | Unavailable:
        answer = self.live.probe(probe, launch)
        if isinstance(answer, ProbeOutcome):
            self._probes[content_hash(probe)] = answer
        return answer

    def recording(self) -> Recording:
        """What was asked and answered. Machine instructions per line are left out where their counters say the same, and all times:
        the same answers make the same recording."""
        slim = {i: msgspec.structs.replace(c, machine=(), stages={}, seconds=0.0) for i, c in self._compiled.items()}
        calm = {
            i: msgspec.structs.replace(e, seconds=0.0, steps=tuple(msgspec.structs.replace(s, seconds=0.0) for s in e.steps))
            for i, e in self._explained.items()
        }
        version = next((c.triton for c in slim.values()), "")
        return Recording(
            case=self.case,
            target=self.target,
            ceilings=self.ceilings(),
            triton=version,
            traces={name: msgspec.structs.replace(t, seconds=0.0) for name, t in self._traces.items()},
            samples=tuple(msgspec.structs.replace(s, seconds=0.0) for s in self._samples),
            compiled=slim,
            explained=calm,
            probes={name: msgspec.structs.replace(p, seconds=0.0) for name, p in self._probes.items()},
            profile=self._profile,
        )


class ReplayGatherer:
    """Answers from a recording. What was not recorded is `Unavailable`, except a trace, without which there is nothing to diagnose."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def source(self, trace: Trace | None) -> SourceFacts:
        return source.read(self.recording.case, {})

    def trace(self, case_name: str) -> Trace:
        if case_name not in self.recording.traces:
            raise EvidenceError(f"no recorded trace of case '{case_name}'", remedy="record it again")
        return self.recording.traces[case_name]

    def samples(self, launches: tuple[Launch, ...]) -> tuple[LaunchSample, ...] | Unavailable:
        return self.recording.samples or Unavailable(what="addresses of sampled programs", reason="not recorded")

    def ceilings(self) -> Ceilings:
        return self.recording.ceilings

    def limit(self, trace: Trace, samples: dict[int, LaunchSample]) -> Limit:
        return floor.limit(trace, list(samples.values()), self.recording.ceilings)

    def cost(self, launch: Launch, sample: LaunchSample) -> LaunchCost:
        return floor.launch_cost(launch, sample, self.recording.ceilings)

    def profile(self, case_name: str) -> Profile | Unavailable:
        return self.recording.profile or Unavailable(what="device timing (level 2)", reason="not recorded")

    def compile(self, launches: Iterable[Launch]) -> dict[int, Compiled | Unavailable]:
        gone = Unavailable(what="compile", reason="not recorded")
        return {x.index: self.recording.compiled.get(x.index, gone) for x in launches}

    def explain(self, launch: Launch) -> Explanation | Unavailable:
        return self.recording.explained.get(launch.index) or Unavailable(what=f"explain of {launch.kernel}", reason="not recorded")

    def probe(self, probe: Probe, launch: Launch) -> ProbeOutcome | Unavailable:
        return self.recording.probes.get(content_hash(probe)) or Unavailable(what=f"probe: {probe.claim}", reason="not recorded")

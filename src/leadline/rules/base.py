"""What a rule is, and the view of the evidence it reads. Rules never run anything."""

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import ClassVar

import msgspec

from leadline.model import (
    GRADES,
    AccessSample,
    Ceilings,
    Compiled,
    CompilerMessage,
    Estimate,
    Evidence,
    Hypothesis,
    IrFact,
    KernelFacts,
    Launch,
    LaunchCost,
    LaunchSample,
    Limit,
    LoopSample,
    Metric,
    PassStep,
    Probe,
    ProbeOutcome,
    Profile,
    Record,
    Rewrite,
    SourceFact,
    SourceFacts,
    Span,
    Trace,
)


class View(Record, frozen=True):
    """Everything known about one case so far. Dictionaries are keyed by launch index; what is missing was not collected (yet).

    `others` are the traces of the remaining named cases (for causes that show only across cases).
    """

    source: SourceFacts
    target: str = "cuda:90"
    trace: Trace | None = None
    others: tuple[Trace, ...] = ()
    samples: dict[int, LaunchSample] = {}
    costs: dict[int, LaunchCost] = {}
    limit: Limit | None = None
    ceilings: Ceilings | None = None
    compiled: dict[int, Compiled] = {}
    messages: dict[int, tuple[CompilerMessage, ...]] = {}
    steps: dict[int, tuple[PassStep, ...]] = {}
    outcomes: tuple[ProbeOutcome, ...] = ()
    profile: Profile | None = None
    level: int = 1

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Launches of the traced case; of an autotuned kernel only the variant the engine settled on."""
        return self.trace.launches if self.trace else ()

    @property
    def sms(self) -> int:
        return self.ceilings.sms if self.ceilings else 132

    def kernel(self, launch: Launch) -> KernelFacts | None:
        """Source facts of the launched kernel."""
        return self.source.kernel(launch.kernel)

    def text(self, file: str) -> str:
        return self.source.texts.get(file, "")

    def measured_us(self, launch: int) -> float | None:
        """Time of one launch as a device measured it; None where none did, or its timings could not be told apart."""
        return next((t.median_us for t in self.profile.launches if t.launch == launch), None) if self.profile else None

    def time_us(self, launch: int) -> float:
        """Time of one launch for ranking: measured where a device measured it, else the static prediction, else 1."""
        if (measured := self.measured_us(launch)) is not None:
            return measured
        cost = self.costs.get(launch)
        return cost.total_us if cost and cost.total_us > 0 else 1.0

    def share(self, launch: int) -> float:
        """Share of the case's device time that this launch takes (repeats included), 0 to 1."""
        total = sum(self.time_us(x.index) * x.repeats for x in self.launches)
        mine = next((self.time_us(x.index) * x.repeats for x in self.launches if x.index == launch), 0.0)
        return mine / total if total > 0 else 1.0

    def access(self, launch: int, line: int, kind: str = "") -> AccessSample | None:
        """The sampled addresses of the access at `line`."""
        sample = self.samples.get(launch)
        if sample is None:
            return None
        return next((a for a in sample.accesses if a.line == line and (not kind or a.kind == kind)), None)

    def loop_trips(self, launch: int, line: int) -> LoopSample | None:
        sample = self.samples.get(launch)
        return next((x for x in sample.loops if x.line == line), None) if sample else None

    def counter(self, launch: int, name: str, line: int = 0) -> int | None:
        """A signature counter of the compiled launch (of one source line when `line` is given); None when it was not compiled."""
        compiled = self.compiled.get(launch)
        if compiled is None or compiled.error:
            return None
        return compiled.line_counters.get(line, {}).get(name, 0) if line else compiled.counters.get(name, 0)

    def message(self, launch: int, *kinds: str, line: int = 0) -> CompilerMessage | None:
        """The first message of one of these kinds (at that line)."""
        for found in self.messages.get(launch, ()):
            if found.kind in kinds and (not line or found.line == line):
                return found
        return None


class Example(Record, frozen=True):
    """A kernel before and after: the rule's tests and its documentation.

    `before` and `after` are whole case files. `line` is where the finding must point (0: `before` is clean and must yield nothing
    above `suspected`). `grade` is the least grade reached from the recorded evidence. `title` is unique within the rule.
    """

    title: str
    before: str
    line: int = 0
    after: str = ""
    grade: str = "suspected"
    rewrite: int = 0  # which of the rule's rewrites must give `after`


class Rule:
    """One cause, how it is found, proved and mended. Subclasses set the class attributes and override what they need.

    The docstring of a rule has the headings *What it finds / Why it is slow / How it is proved / Rewrite and its safety / References*.
    """

    code: ClassVar[str]
    slug: ClassVar[str]  # names the defect
    cause: ClassVar[str]  # slug of the catalogue of causes
    family: ClassVar[str]  # host grid tile memory compute pipeline atomics
    targets: ClassVar[tuple[str, ...]] = ("cuda",)
    examples: ClassVar[tuple[Example, ...]] = ()
    first_call: ClassVar[bool] = False  # its rewrites save compiling: they are judged by the first call, not by the steady state

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        """Hypotheses that the view raises. Called after every level; the engine drops those it already has (same rule and key)."""
        return ()

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        """Raise the grade of `hypothesis`, add facts, or refute it, from what levels 2 to 4 added to the view."""
        return hypothesis

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        """Counterfactuals that would confirm or refute it (level 4)."""
        return ()

    def conclude(self, view: View, hypothesis: Hypothesis, outcomes: tuple[ProbeOutcome, ...]) -> Hypothesis:
        """Read the probes: any that flipped confirms, all that ran and did not flip refute."""
        ran = [o for o in outcomes if not o.error]
        if any(o.flipped for o in ran):
            return raised(hypothesis, "confirmed", *[o for o in ran if o.flipped])
        if ran and len(ran) == len(outcomes):
            tried = "; ".join(
                f"granting {', '.join(f.describe() for f in o.probe.grants)} left {o.probe.signature} at {o.after}" for o in ran
            )
            return msgspec.structs.replace(hypothesis, refuted=tried, counter=(*hypothesis.counter, *ran))
        return hypothesis

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        """Whole-file rewrites, best first. Empty when a precondition does not hold."""
        return ()

    # -- making records ---------------------------------------------------------------------------------------------

    def hypothesis(
        self,
        view: View,
        launch: Launch | None,
        *,
        line: int,
        claim: str,
        low: float,
        high: float,
        kernel: str = "",
        key: str = "",
        file: str = "",
        column: int = 0,
        end_line: int = 0,
        end_column: int = 0,
        facts: Iterable[Evidence] = (),
        grade: str = "suspected",
        prediction: str = "",
        sufficient_level: int = 3,
        notes: Iterable[str] = (),
    ) -> Hypothesis:
        """A hypothesis of this rule. `low` and `high` are speedups of the launch (of the whole case when `launch` is None); they are
        weighed by the launch's share of the case's time here, once, by Amdahl's law."""
        where = file or (launch.kernel_file if launch else view.source.path)
        share = view.share(launch.index) if launch else 1.0
        estimate = Estimate(kind="local" if launch and share < 0.999 else "global", low=amdahl(low, share), high=amdahl(high, share))
        return Hypothesis(
            rule=self.code,
            cause=self.cause,
            claim=claim,
            span=Span(file=where, line=line, column=column, end_line=end_line or line, end_column=end_column),
            estimate=estimate,
            kernel=kernel or (launch.kernel if launch else ""),
            launch=launch.index if launch else -1,
            key=key or f"{where.rsplit('/', 1)[-1]}:{line}",
            facts=tuple(facts),
            grade=grade,
            prediction=prediction,
            sufficient_level=sufficient_level,
            notes=tuple(notes),
        )


def amdahl(speedup: float, share: float) -> float:
    """Speedup of the whole when the part that takes `share` of the time gets `speedup` times faster."""
    return 1.0 / ((1.0 - share) + share / max(speedup, 1e-9))


def raised(hypothesis: Hypothesis, grade: str, *facts: Evidence) -> Hypothesis:
    """The hypothesis with these facts (each once), at least at `grade` (never lowered)."""
    better = max(hypothesis.grade, grade, key=GRADES.index)
    return msgspec.structs.replace(hypothesis, grade=better, facts=_joined(hypothesis.facts, facts))


def refuted(hypothesis: Hypothesis, reason: str, *facts: Evidence) -> Hypothesis:
    """The hypothesis, refuted by these facts; it is reported, not dropped."""
    return msgspec.structs.replace(hypothesis, refuted=reason, counter=_joined(hypothesis.counter, facts))


def weakened(hypothesis: Hypothesis, *facts: Evidence) -> Hypothesis:
    """The hypothesis with evidence against it (each fact once) that does not refute it."""
    return msgspec.structs.replace(hypothesis, counter=_joined(hypothesis.counter, facts))


def _joined(known: tuple[Evidence, ...], new: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    return (*known, *(fact for i, fact in enumerate(new) if fact not in known and fact not in new[:i]))


def seen(what: str, file: str, line: int) -> SourceFact:
    """A source fact as evidence."""
    return SourceFact(id="", what=what, file=file, line=line)


def metric(
    name: str, value: float, unit: str, launch: Launch, line: int = 0, *, predicted: bool = True, collector: str = "sampling"
) -> Metric:
    """A number about a launch as evidence."""
    return Metric(
        id="",
        name=name,
        value=value,
        unit=unit,
        predicted=predicted,
        launch=launch.index,
        file=launch.kernel_file,
        line=line,
        collector=collector,
    )


def located(stage: str, what: str, launch: Launch, line: int, value: int | float | str | None = None) -> IrFact:
    """An operation or instruction of one stage, on a source line, as evidence."""
    return IrFact(id="", stage=stage, what=what, value=value, launch=launch.index, file=launch.kernel_file, line=line)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of this package and of installed plug-ins (entry-point group `leadline.rules`), ordered by code."""
    package = importlib.import_module("leadline.rules")
    found: dict[str, Rule] = {}
    for module in pkgutil.walk_packages(package.__path__, "leadline.rules."):
        if module.ispkg or ".editing" in module.name:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(value, type)
                and issubclass(value, Rule)
                and value is not Rule
                and value.__module__ == module.name
                and hasattr(value, "code")
            ):
                found[value.code] = value()
    for entry in importlib.metadata.entry_points(group="leadline.rules"):
        rule = entry.load()()
        found.setdefault(rule.code, rule)
    return tuple(found[code] for code in sorted(found))


def rule(name: str) -> Rule | None:
    """The rule with this code or slug."""
    return next((r for r in all_rules() if name in (r.code, r.slug)), None)

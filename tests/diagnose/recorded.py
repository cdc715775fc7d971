"""A recording to diagnose without a compiler, and rules that claim what a test wants them to."""

from collections.abc import Callable, Iterable

import msgspec

from leadline.diagnose.engine import Diagnosis, Engine
from leadline.diagnose.recorded import Recording, ReplayGatherer
from leadline.model import Hypothesis, Option, Probe, ProbeOutcome, Rewrite, SourceFact
from leadline.rules.base import Rule, View
from tests.rules.recording import FOLDER, load

PROBE = Probe(claim="one stage", grants=(Option(name="num_stages", value=3),), signature="async_copy", expect="increase")


def recording() -> Recording:
    """One launch of a product on cuda:90, everything recorded but a profile and probes."""
    return load(FOLDER / "PIP101_a_plain_product_loop.json.gz")


class Fake(Rule):
    """Claims one thing. `script` maps "suspect", "explain", "probes", "conclude" and "rewrite" to what is to be done there."""

    slug, cause, family = "fake", "fake_cause", "grid"

    def __init__(self, code: str = "FAK101", *, low: float = 1.5, high: float = 2.0, cause: str = "fake_cause", **script: Callable) -> None:
        self.code, self.cause, self.low, self.high, self.script = code, cause, low, high, script  # type: ignore[misc]
        self.asked: list[tuple[str, int]] = []

    def claim(self, view: View, **more: object) -> Hypothesis:
        given = {"line": 15, "claim": f"{self.code} says so", "low": self.low, "high": self.high, "grade": "observed", **more}
        return self.hypothesis(view, view.launches[0], **given)  # type: ignore[arg-type]

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        self.asked.append(("suspect", view.level))
        return self.script["suspect"](self, view) if "suspect" in self.script else [self.claim(view)]

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        self.asked.append(("explain", view.level))
        return self.script["explain"](view, hypothesis) if "explain" in self.script else hypothesis

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        return self.script["probes"](view, hypothesis) if "probes" in self.script else ()

    def conclude(self, view: View, hypothesis: Hypothesis, outcomes: tuple[ProbeOutcome, ...]) -> Hypothesis:
        if "conclude" in self.script:
            return self.script["conclude"](view, hypothesis, outcomes)
        return super().conclude(view, hypothesis, outcomes)

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        return self.script["rewrite"](view, hypothesis) if "rewrite" in self.script else ()


def graded(grade: str, at_level: int) -> Callable[[View, Hypothesis], Hypothesis]:
    """An `explain` that reaches `grade` at that level."""

    def explain(view: View, hypothesis: Hypothesis) -> Hypothesis:
        if view.level < at_level or hypothesis.grade == grade:
            return hypothesis
        fact = SourceFact(id="", what=f"seen at level {view.level}", file=hypothesis.span.file, line=hypothesis.span.line)
        return msgspec.structs.replace(hypothesis, grade=grade, facts=(*hypothesis.facts, fact))

    return explain


def run(rules: list[Rule], made: Recording | None = None, **options: object) -> Diagnosis:
    made = made or recording()
    first, *others = made.traces
    return Engine(ReplayGatherer(made), rules, target="cuda:90", **options).run(first, others)  # type: ignore[arg-type]

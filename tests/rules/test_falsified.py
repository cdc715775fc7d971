"""Evidence bent on purpose: a rule that goes on to claim what the evidence denies would be caught by the tests of its examples."""

import msgspec
import pytest

from leadline.diagnose.engine import Diagnosis, Engine
from leadline.diagnose.recorded import Recording, ReplayGatherer
from leadline.model import GRADES, Hypothesis, Probe
from leadline.rules.base import Example, Rule, View, all_rules
from tests.rules.recording import TARGET, load, path_of, slug

FOUND = [pytest.param(r, e, id=slug(r, e)) for r in all_rules() for e in r.examples if e.line]
CONFIRMED = [p for p in FOUND if p.values[1].grade == "confirmed"]
OPPOSITE = {"increase": "decrease", "decrease": "increase", "zero": "nonzero", "nonzero": "zero"}


def diagnosed(rule: Rule, made: Recording) -> Diagnosis:
    first, *others = made.traces
    return Engine(ReplayGatherer(made), [rule], target=TARGET, auto=False).run(first, others)


def at_line(found: Diagnosis, example: Example) -> list[Hypothesis]:
    return [h for h in found.hypotheses if h.span.line == example.line]


@pytest.mark.parametrize(("rule", "example"), CONFIRMED)
def test_a_probe_that_did_not_flip_confirms_nothing(rule: Rule, example: Example) -> None:
    made = load(path_of(rule, example))
    assert any(o.flipped for o in made.probes.values())
    bent = {k: msgspec.structs.replace(o, after=o.before, flipped=False) for k, o in made.probes.items()}
    found = diagnosed(rule, msgspec.structs.replace(made, probes=bent))
    assert [h.grade for h in found.hypotheses if h.grade == "confirmed"] == []
    doubted = [h for h in (*found.hypotheses, *found.refuted) if h.span.line == example.line]
    assert doubted, "it is reported as refuted or as not confirmed, never lost"


@pytest.mark.parametrize(("rule", "example"), CONFIRMED)
def test_a_probe_that_failed_neither_confirms_nor_refutes(rule: Rule, example: Example) -> None:
    made = load(path_of(rule, example))
    bent = {k: msgspec.structs.replace(o, after=None, flipped=False, error="does not compile") for k, o in made.probes.items()}
    found = diagnosed(rule, msgspec.structs.replace(made, probes=bent))
    assert at_line(found, example)
    assert [h.grade for h in at_line(found, example) if h.grade == "confirmed"] == []
    assert [h for h in found.refuted if h.span.line == example.line] == []


@pytest.mark.parametrize(("rule", "example"), CONFIRMED)
def test_a_prediction_in_the_wrong_direction_is_another_probe(rule: Rule, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = type(rule).probes

    def wrong(self: Rule, view: View, hypothesis: Hypothesis) -> list[Probe]:
        return [msgspec.structs.replace(p, expect=OPPOSITE[p.expect]) for p in honest(self, view, hypothesis)]

    monkeypatch.setattr(type(rule), "probes", wrong)
    found = diagnosed(rule, load(path_of(rule, example)))
    assert [h.grade for h in at_line(found, example) if h.grade == "confirmed"] == []


@pytest.mark.parametrize(("rule", "example"), FOUND)
def test_without_a_compile_no_operation_is_located(rule: Rule, example: Example) -> None:
    made = msgspec.structs.replace(load(path_of(rule, example)), compiled={}, explained={}, probes={})
    found = diagnosed(rule, made)
    assert found.errors == ()
    assert [h.grade for h in found.hypotheses if GRADES.index(h.grade) >= GRADES.index("located")] == []


@pytest.mark.parametrize(("rule", "example"), FOUND)
def test_without_samples_nothing_crashes(rule: Rule, example: Example) -> None:
    made = msgspec.structs.replace(load(path_of(rule, example)), samples=())
    assert diagnosed(rule, made).errors == ()

import math

import msgspec
import pytest

from leadline.diagnose.ranking import NEGLIGIBLE, WEIGHT, expected_gain, ranked
from leadline.model import GRADES, Estimate, Hypothesis, Span


def claim(rule: str, high: float, *, low: float = 1.0, grade: str = "observed", **more) -> Hypothesis:
    return Hypothesis(
        rule=rule, cause="c", claim=rule, span=Span(file="k.py", line=1), estimate=Estimate(kind="global", low=low, high=high), key="k",
        grade=grade, **more,
    )  # fmt: skip


def order(*hypotheses: Hypothesis) -> list[str]:
    return [h.rule for h in ranked(list(hypotheses))]


def test_expected_gain_is_the_log_of_the_geometric_mean_weighed_by_grade() -> None:
    assert expected_gain(claim("A", 4.0, grade="confirmed")) == pytest.approx(math.log(2.0))
    assert expected_gain(claim("A", 4.0, grade="suspected")) == pytest.approx(0.45 * math.log(2.0))
    assert expected_gain(claim("A", 0.5, low=0.2)) == 0.0, "a loss is no negative gain"


def test_a_better_grade_never_weighs_less() -> None:
    assert tuple(WEIGHT) == GRADES
    assert sorted(WEIGHT.values()) == list(WEIGHT.values())


def test_best_first_and_ties_stay_in_order() -> None:
    assert order(claim("A", 1.2), claim("B", 3.0), claim("C", 1.2)) == ["B", "A", "C"]
    assert order(claim("A", 2.2, grade="suspected"), claim("B", 1.8, grade="confirmed")) == ["B", "A"]


def test_refuted_and_negligible_ones_are_dropped() -> None:
    assert order(claim("A", NEGLIGIBLE), claim("B", 1.029), claim("C", 2.0, refuted="not so")) == ["A"]


def test_consequences_come_after_their_root_whatever_they_claim() -> None:
    root = claim("ROOT", 1.1, root_of=("BIG:k", "GONE:k"))
    assert order(claim("BIG", 9.0), claim("OTHER", 1.05), root) == ["ROOT", "OTHER", "BIG"]


def test_a_dropped_root_frees_its_consequences() -> None:
    root = claim("ROOT", 1.1, root_of=("BIG:k",), refuted="not so")
    assert order(claim("SMALL", 1.5), claim("BIG", 9.0), root) == ["BIG", "SMALL"]


def test_causes_that_name_each_other_are_both_kept() -> None:
    one = claim("A", 2.0, root_of=("B:k",))
    assert order(one, msgspec.structs.replace(one, rule="B", root_of=("A:k",), estimate=Estimate(kind="global", low=1.0, high=3.0))) == [
        "B",
        "A",
    ]

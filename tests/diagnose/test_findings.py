import msgspec

from leadline.diagnose.engine import Diagnosis
from leadline.diagnose.findings import Numbered, findings, unified
from leadline.model import Estimate, Hypothesis, Metric, Rewrite, SourceFact, SourceFacts, Span, Unavailable
from leadline.rules.base import View

OLD, NEW = "a = 1\nb = 2\n", "a = 1\nb = 3\n"
FACT = SourceFact(id="", what="a stride", file="k.py", line=3)
NUMBER = Metric(id="", name="active", value=0.5, unit="")
MEND = Rewrite(id="", rule="FAK101", title="mend", source=NEW)


def claim(**more) -> Hypothesis:
    return Hypothesis(
        rule="FAK101", cause="c", claim="slow", span=Span(file="k.py", line=3, column=4, end_line=5, end_column=6), key="k",
        kernel="kernel", launch=2, estimate=Estimate(kind="local", low=1.0, high=2.0), **more,
    )  # fmt: skip


def diagnosis(*hypotheses: Hypothesis, **more) -> Diagnosis:
    return Diagnosis(
        view=View(source=SourceFacts(path="k.py")), hypotheses=hypotheses, **{"refuted": (), "unavailable": (), "levels": (), **more}
    )


def test_a_finding_carries_what_its_hypothesis_says() -> None:
    hypothesis = claim(grade="located", notes=("first", "second"), facts=(FACT,), counter=(NUMBER,), root_of=("FAK102:k", "GONE:k"))
    other = msgspec.structs.replace(claim(facts=(FACT,)), rule="FAK102")
    numbered = Numbered()
    found, refuted = findings(diagnosis(hypothesis, other), OLD, "/x/k.py", numbered)
    assert refuted == ()
    one, two = found
    assert (one.rule, one.grade, one.file, one.line, one.column, one.end_line, one.end_column) == ("FAK101", "located", "k.py", 3, 4, 5, 6)
    assert (one.summary, one.why, one.kernel, one.launch, one.estimate) == ("slow", "first second", "kernel", 2, hypothesis.estimate)
    assert (one.evidence, one.against) == (("e1",), ("e2",))
    assert two.evidence == ("e1",), "equal evidence has one id"
    assert one.consequences == ("FAK102:k",), "only those that survived"
    assert numbered.evidence == {"e1": msgspec.structs.replace(FACT, id="e1"), "e2": msgspec.structs.replace(NUMBER, id="e2")}


def test_rewrites_are_numbered_with_their_diffs() -> None:
    second = msgspec.structs.replace(MEND, source=NEW + "c = 1\n", diff="given")
    numbered = Numbered()
    (found,), _ = findings(diagnosis(claim(), rewrites={"FAK101:k": (MEND, second)}), OLD, "/x/k.py", numbered)
    assert (found.rewrite, found.rewrites) == ("r1", ("r1", "r2"))
    assert numbered.rewrites["r1"].diff == "--- a/k.py\n+++ b/k.py\n@@ -1,2 +1,2 @@\n a = 1\n-b = 2\n+b = 3\n"
    assert numbered.rewrites["r2"].diff == "given"
    (again,), _ = findings(diagnosis(claim(), rewrites={"FAK101:k": (MEND,)}), OLD, "/x/k.py", numbered)
    assert again.rewrites == ("r3",), "ids go on in a later round"


def test_without_a_rewrite_there_is_none() -> None:
    (found,), _ = findings(diagnosis(claim()), OLD, "k.py", Numbered())
    assert (found.rewrite, found.rewrites) == ("", ())


def test_refuted_hypotheses_keep_their_evidence_by_id() -> None:
    numbered = Numbered()
    found, (refuted,) = findings(diagnosis(refuted=(claim(refuted="no", facts=(FACT,), counter=(NUMBER,)),)), OLD, "k.py", numbered)
    assert found == ()
    assert (refuted.refuted, refuted.evidence, refuted.against) == ("no", ("e1",), ("e2",))
    assert (refuted.facts, refuted.counter) == ((), ())


def test_absent_evidence_is_no_evidence() -> None:
    gone = Unavailable(what="timing", reason="no device")
    numbered = Numbered()
    diagnosed = diagnosis(claim(facts=(gone, FACT)), refuted=(claim(refuted="no", facts=(gone,), counter=(gone,)),))
    (found,), (refuted,) = findings(diagnosed, OLD, "k.py", numbered)
    assert found.evidence == ("e1",)
    assert (refuted.evidence, refuted.against) == ((), ())
    assert set(numbered.evidence) == {"e1"}


def test_unified_names_the_file_alone() -> None:
    assert unified(OLD, OLD, "/x/k.py") == ""
    assert unified("a", "b", "/x/k.py").startswith("--- a/k.py\n+++ b/k.py\n")

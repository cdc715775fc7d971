"""Wording and order shared by all formats."""

import msgspec
import pytest

from leadline.model import (
    Check,
    CompilerMessage,
    Estimate,
    Finding,
    Interval,
    IrFact,
    Limit,
    Metric,
    PassStep,
    Rewrite,
    Round,
    Run,
    SourceFact,
    Unavailable,
    Verdict,
)
from leadline.report import content
from leadline.report.document import html
from leadline.report.markdown import markdown


@pytest.mark.parametrize(
    ("evidence", "level", "sentence"),
    [
        (SourceFact(id="e", what="a stride", line=3), 1, "a stride (line 3)"),
        (Metric(id="e", name="active", value=0.5, unit="", predicted=True, collector="sampling"), 1, "active 0.5 [predicted]"),
        (Metric(id="e", name="time", value=12.345678, unit="us", collector="timing", line=2), 2, "time 12.35 us (line 2) [measured]"),
        (IrFact(id="e", stage="ptx", what="ld.global"), 3, "ptx: ld.global"),
        (IrFact(id="e", stage="ptx", what="ld.global", value=0), 3, "ptx: ld.global = 0"),
        (PassStep(id="e", pass_name="p", stage="ttgir", before={"a": 1}, after={"b": 2}), 4, "pass p (ttgir): a 1 → 0, b 0 → 2"),
        (PassStep(id="e", pass_name="p", stage="ttgir"), 4, "pass p (ttgir): nothing changed"),
        (CompilerMessage(id="e", channel="remark", text=" no \n"), 4, 'remark: "no"'),
        (Unavailable(what="counters", reason="no device"), 0, "counters: no device"),
    ],
)
def test_evidence_in_words(evidence, level, sentence):
    assert (content.level_of(evidence), content.sentence(evidence)) == (level, sentence)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1.3, 1.9, "expected 1.3-1.9x"), (2.0, 2.0, "expected 2.0x"), (1.01, 1.04, "expected 1.01-1.04x"), (1, 1, "expected 1.00x"),
     (3, 12.34, "expected 3.0-12.3x")],
)  # fmt: skip
def test_estimates_are_expectations(low, high, text):
    assert content.gain(Estimate(kind="global", low=low, high=high)) == text


def test_limit_in_words():
    assert content.limit(Run()) == ""
    assert content.limit(Run(limit=Limit(bound="compute", floor_us=3.0))) == "compute bound: floor 3.0 us (predicted), time not measured"
    measured = Limit(bound="memory", floor_us=41.0, time_us=95.0, fraction=0.43, predicted=False)
    assert content.limit(Run(limit=measured)) == "memory bound: floor 41.0 us (measured), time 95.0 us (measured), 43% of the limit"


def test_the_best_round_is_the_fastest_accepted_and_measured():
    def made(number: int, verdict: str, mid: float, measured: bool) -> Round:
        speedup = Interval(low=mid - 0.1, mid=mid, high=mid + 0.1)
        details = Verdict(outcome=verdict, reason="", measured=measured)
        return Round(round=number, parent=0, hypothesis="h", rewrite="", verdict=verdict, speedup=speedup, details=details)

    rounds = (
        made(1, "accepted", 1.2, True),
        made(2, "accepted", 1.6, True),
        made(3, "accepted", 9.0, False),
        made(4, "rejected", 3.0, True),
    )
    run = Run(command="optimize", device="D", rounds=rounds)
    assert content.outcome(run) == "best speedup: 1.60x (1.50-1.70), measured on D, round 2"
    assert [row.speedup for row in content.round_rows(run)] == [
        "1.20x (1.10-1.30)",
        "1.60x (1.50-1.70)",
        "not measured",
        "3.00x (2.90-3.10)",
    ]
    final = msgspec.structs.replace(made(5, "accepted", 1.5, True), rewrite="final")
    run = msgspec.structs.replace(run, rounds=(*rounds, final))
    assert content.outcome(run) == "best speedup: 1.50x (1.40-1.60), measured on D, round 5"
    run = msgspec.structs.replace(run, rounds=(*rounds, msgspec.structs.replace(final, verdict="rejected")))
    assert content.outcome(run) == "best speedup: none (no candidate was accepted)"
    chained = msgspec.structs.replace(made(2, "accepted", 1.9, True), parent=1)  # 1.9 times its parent, not the original
    run = msgspec.structs.replace(run, rounds=(rounds[0], chained))
    assert content.outcome(run) == "best speedup: 1.20x (1.10-1.30), measured on D, round 1"
    bare = Round(round=1, parent=0, hypothesis="h", rewrite="", verdict="accepted", speedup=Interval(low=1, mid=2, high=3))
    assert content.measured(bare, Run(device=None)) is None
    assert content.measured(bare, Run(device="D")) == bare.speedup


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (Run(command="diagnose"), "no findings"),
        (Run(command="optimize"), "best speedup: not measured (no device)"),
        (Run(command="optimize", device="D"), "best speedup: none (no candidate was accepted)"),
        (Run(command="verify", device="D"), "speedup: none (no candidate was accepted)"),
    ],
)
def test_the_last_line(run, text):
    assert content.outcome(run) == text


def spot(**options) -> Finding:
    fields = {"rule": "R", "cause": "a_b", "grade": "located", "file": "k.py", "line": 2, "summary": "s", **options}
    return Finding(estimate=Estimate(kind="global", low=1, high=2), **fields)


def test_excerpts():
    run = Run(path="k.py", source="one\n\ttwo = 2\nthree\nfour\n")
    lines = content.excerpt(run, spot(column=1), context=1)
    assert [(n, t, s, e) for n, t, s, e in lines] == [(1, "one", 0, 0), (2, " two = 2", 1, 8), (3, "three", 0, 0)]
    assert content.excerpt(run, spot(file="other.py")) == []
    assert content.excerpt(run, spot(line=99)) == []
    assert content.excerpt(run, spot(line=0)) == []
    many = content.excerpt(run, spot(line=3, column=2, end_line=4, end_column=2), context=0)
    assert [(line.number, line.start, line.end) for line in many] == [(3, 2, 5), (4, 0, 2)]
    wild = content.excerpt(run, spot(column=90, end_line=2, end_column=95), context=0)
    assert [(line.start, line.end) for line in wild] == [(8, 8)]


def test_places_and_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(content, "slugs", lambda: {"R": "named-so"})
    assert content.place(spot(file=str(tmp_path / "sub" / "k.py"), column=4)) == "sub/k.py:2:5"
    assert content.shown("/elsewhere/k.py") == "/elsewhere/k.py"
    assert (content.slug("R", "a_b"), content.slug("Q", "a_b")) == ("named-so", "a-b")


def test_a_broken_rule_does_not_break_a_report(monkeypatch):
    from leadline.rules import base

    def fail():
        raise RuntimeError("plug-in")

    monkeypatch.setattr(base, "all_rules", fail)
    content.slugs.cache_clear()
    assert content.slugs() == {}
    content.slugs.cache_clear()


def test_tally():
    run = Run(findings=(spot(), spot(grade="confirmed"), spot(grade="confirmed")))
    assert content.tally(run) == "3 findings (2 confirmed, 1 located)"
    assert content.tally(Run(findings=(spot(),))) == "1 finding (1 located)"


def test_amounts_are_whole_where_they_are():
    assert [content.amount(v) for v in (16384.0, 2**33, 0.0, 1.23456, 1e20, float("inf"))] == [
        "16384", "8589934592", "0", "1.235", "1e+20", "inf",
    ]  # fmt: skip


def verified(verdict: str, *checks: Check, rewrite: str = "some/new.py", **fields) -> Run:
    details = Verdict(outcome=verdict, reason="", checks=checks, **fields)
    entry = Round(round=1, parent=0, hypothesis="the candidate new.py", rewrite=rewrite, verdict=verdict, details=details)
    return Run(command="verify", rounds=(entry,), best_diff="-a\n+b\n")


def gate(name: str, passed: bool | None = True, case: str = "big") -> Check:
    return Check(name=name, passed=passed, case=case)


SMALL = (gate("interpreter", case="tiny"), gate("interpreter", case="odd"))


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (verified("inconclusive", *SMALL, gate("compiles"), gate("coverage")),
         "correct in the interpreter on tiny, odd; full size: traced, compiled, stores sampled; not run, not timed (no device)"),
        (verified("inconclusive", *SMALL, gate("compiles"), gate("coverage"), gate("coverage", None, "other")),
         "correct in the interpreter on tiny, odd; full size: traced, compiled; stores not compared, not run, not timed (no device)"),
        (verified("inconclusive", gate("interpreter", None)),
         "not run in the interpreter; full size: not compiled, stores not compared, not run, not timed (no device)"),
        (verified("accepted", *SMALL, gate("device"), measured=True),
         "correct in the interpreter on tiny, odd; correct on the device on big; timed"),
        (verified("rejected", *SMALL), ""),
        (verified("inconclusive"), ""),
        (Run(command="verify"), ""),
        (Run(command="optimize", rounds=verified("inconclusive", *SMALL).rounds), ""),
    ],
)  # fmt: skip
def test_what_was_checked(run, text):
    assert content.checked(run) == text


def test_nothing_rejected_is_called_faster_or_accepted():
    assert [row.rewrite for row in content.round_rows(verified("rejected"))] == ["new.py"]
    titles = [content.change_title(verified(v)) for v in ("accepted", "rejected", "inconclusive")]
    assert titles == ["accepted change", "rejected change", "change, neither accepted nor rejected"]
    assert content.change_title(Run()) == "accepted change"
    final = Round(round=2, parent=0, hypothesis="all accepted changes together", rewrite="final", verdict="inconclusive")
    assert content.round_rows(Run(rounds=(final,)))[0].rewrite == "the rewritten file against the original"
    timed = msgspec.structs.replace(final, verdict="accepted", speedup=Interval(low=1, mid=2, high=3))
    assert content.round_rows(Run(device="D", rounds=(timed,)))[0].rewrite == "all accepted changes together"


def test_fixes_and_their_absence():
    def made(ident: str, diff: str) -> Rewrite:
        return Rewrite(id=ident, rule="MEM101", title=ident, source="", diff=diff)

    first = msgspec.structs.replace(spot(), rule="MEM101", key="a", rewrite="r1", rewrites=("r1", "r2"))
    second = msgspec.structs.replace(spot(), rule="TIL101", key="b", rewrite="r3")
    third = msgspec.structs.replace(spot(), rule="GRD101", key="c", rewrite="", rewrites=())
    run = Run(findings=(first, second, third), rewrites={"r1": made("r1", "+x"), "r2": made("r2", "+y"), "r3": made("r3", "+x")})
    fixes = content.fixes(run)
    assert [(f.label, f.rewrite.id, f.same_as) for f in fixes["MEM101", "a"]] == [("fix", "r1", ""), ("or", "r2", "")]
    assert [(f.label, f.rewrite.id, f.same_as) for f in fixes["TIL101", "b"]] == [("fix", "r3", "MEM101")]
    assert fixes["GRD101", "c"] == ()
    assert content.no_fix(third) == "none offered: no rewrite of GRD101 applies here; leadline explain GRD101 lists what it needs"
    page, text = html(run), markdown(run)
    for shown in ("Fix: r1", "Or: r2", "Same change as MEM101 above.", "Fix: none offered: no rewrite of GRD101 applies here"):
        assert shown in page
        assert shown in text.replace("**", "")

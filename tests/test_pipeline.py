"""The loop over rounds with a session made of scripts: what is judged, kept, and when the search ends."""

import itertools
import time
from types import SimpleNamespace

import msgspec
import pytest

from leadline import pipeline
from leadline.diagnose.engine import Diagnosis
from leadline.errors import EvidenceError, KernelError, UsageError
from leadline.model import (
    Candidate,
    Check,
    Estimate,
    Hypothesis,
    Interval,
    KernelCase,
    Rewrite,
    Run,
    SourceFacts,
    Span,
    Unavailable,
    Verdict,
    content_hash,
)
from leadline.propose.base import Proposal
from leadline.rules.base import View
from leadline.settings import DiagnoseOptions, OptimizeOptions, VerifyOptions
from leadline.verify.judge import JudgeRequest

ORIGINAL = "original\n"


def accepted(speedup: float) -> Verdict:
    return Verdict(
        outcome="accepted", reason="faster", compiled=True, correct=True, measured=True,
        speedup=Interval(low=speedup - 0.01, mid=speedup, high=speedup + 0.01),
    )  # fmt: skip


REJECTED = Verdict(outcome="rejected", reason="wrong result", compiled=True, correct=False, measured=False)
SLOWER = msgspec.structs.replace(REJECTED, reason="slower", correct=True, measured=True, speedup=Interval(low=0.8, mid=0.9, high=1.0))
UNMEASURED = Verdict(outcome="inconclusive", reason="no device", compiled=True, correct=True, measured=False)


class Judge:
    """Verdicts by (original, candidate), else by candidate; keeps what it was asked."""

    def __init__(self, **verdicts: Verdict) -> None:
        self.verdicts: dict = {f"{name}\n": verdict for name, verdict in verdicts.items()}
        self.against_original: dict[str, Verdict] = {}
        self.baseline = Verdict(outcome="inconclusive", reason="baseline", correct=True)
        self.asked: list[JudgeRequest] = []

    def __call__(self, request: JudgeRequest, workers: object) -> Verdict:
        if request.baseline_only:
            return self.baseline
        self.asked.append(request)
        if request.original == ORIGINAL and request.candidate in self.against_original:
            return self.against_original[request.candidate]
        return self.verdicts[request.candidate]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(r.original.strip(), r.candidate.strip()) for r in self.asked]


def found(*rewrites: str, rule: str = "FAK101") -> tuple[Hypothesis, tuple[Rewrite, ...]]:
    hypothesis = Hypothesis(
        rule=rule, cause="c", claim=f"{rule} is why", span=Span(file="k.py", line=1), estimate=Estimate(kind="global", low=1.5, high=2.0),
        key="k", grade="located",
    )  # fmt: skip
    return hypothesis, tuple(Rewrite(id="", rule=rule, title=name, source=f"{name}\n") for name in rewrites)


class Session:
    """What the pipeline asks of a session; `diagnoses` maps a source to what is found in it."""

    def __init__(self, diagnoses: dict[str, list], *, device: bool = True) -> None:
        self.diagnoses = {f"{name}\n": found for name, found in diagnoses.items()}
        self.case = KernelCase(path="/k.py", source=ORIGINAL, kernels=("k",))
        self.case_name = "full"
        self.options = DiagnoseOptions(target_file="/k.py", target="cuda:80")
        self.names = SimpleNamespace(cases=("full", "other"), small=("odd",))
        self.workers = SimpleNamespace(device=object() if device else None, waited_s=0.0)
        self.saved: list[Run] = []
        self.store = SimpleNamespace(save_run=self.saved.append)
        self.diagnosed: list[str] = []
        self.clock = 0.0

    def start(self, command: str) -> Run:
        return Run(id="run", command=command, path=self.case.path, source=self.case.source)

    def spent(self, began: float) -> float:
        return self.clock

    def as_file(self, text: str) -> KernelCase:
        return msgspec.structs.replace(self.case, source=text)

    def diagnose(self, case: KernelCase, *, level: str, progress: object) -> Diagnosis:
        self.diagnosed.append(case.source.strip())
        made = self.diagnoses.get(case.source, [])
        if isinstance(made, Exception):
            raise made
        return Diagnosis(
            view=View(source=SourceFacts(path="/k.py")),
            hypotheses=tuple(h for h, _ in made),
            refuted=(),
            unavailable=(Unavailable(what="device timing (level 2)", reason="none", remedy="run elsewhere"),),
            levels=(),
            rewrites={f"{h.rule}:{h.key}": rewrites for h, rewrites in made},
        )


def optimized(monkeypatch: pytest.MonkeyPatch, session: Session, judge: Judge, **options: object) -> Run:
    monkeypatch.setattr(pipeline, "Session", lambda given, stack: session)
    monkeypatch.setattr(pipeline, "judge", judge)
    return pipeline.optimize(OptimizeOptions(target_file="/k.py", **{"proposers": ("rules",), **options}))


def rounds(run: Run) -> list[tuple[str, str]]:
    return [(r.rewrite, r.verdict) for r in run.rounds]


# -- one step ---------------------------------------------------------------------------------------------------------


def step(monkeypatch: pytest.MonkeyPatch, judge: Judge, proposals: list[Proposal], **more: object) -> tuple:
    session = Session({}, device=not more.get("no_device"))
    session.clock = float(more.get("clock", 0.0))  # type: ignore[arg-type]
    monkeypatch.setattr(pipeline, "judge", judge)
    parent = pipeline._Node(Candidate(id="p", source=ORIGINAL, proposer="original"))
    made: list = []
    options = OptimizeOptions(target_file="/k.py", budget_s=10.0)
    best = pipeline._best_of(session, options, parent, proposals, made, {"tried"}, time.monotonic(), pipeline.silent)  # type: ignore[arg-type]
    return best, made


def proposal(name: str, group: str = "g", **more: object) -> Proposal:
    candidate = Candidate(id=name, source=f"{name}\n", proposer="rules", rewrite=name, title=name)
    return Proposal(candidate=candidate, hypothesis=f"{name} helps", group=group, **more)  # type: ignore[arg-type]


def test_the_best_alternative_of_the_first_group_that_wins_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(a=SLOWER, b1=accepted(1.2), b2=accepted(1.5), b3=accepted(1.3), c=accepted(9.0))
    proposals = [proposal("a", "a"), proposal("b1", "b"), proposal("b2", "b"), proposal("b3", "b"), proposal("c", "c")]
    best, made = step(monkeypatch, judge, proposals)
    assert (best.candidate.id, best.gain, best.round) == ("b2", 1.5, 3)
    assert [r.rewrite for r in made] == ["a", "b1", "b2", "b3"], "another cause waits for the next diagnosis"
    assert [r.parent for r in made] == [0, 0, 0, 0]


def test_a_candidate_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(a=SLOWER)
    best, made = step(monkeypatch, judge, [proposal("tried"), proposal("a"), proposal("a")])
    assert best is None
    assert [r.rewrite for r in made] == ["a"]


def test_without_a_device_one_unmeasured_step_per_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(a=REJECTED, b1=UNMEASURED, b2=UNMEASURED)
    best, made = step(monkeypatch, judge, [proposal("a", "a"), proposal("b1", "b"), proposal("b2", "b")], no_device=True)
    assert (best.candidate.id, best.gain) == ("b1", 1.0)
    assert [r.verdict for r in made] == ["rejected", "inconclusive"]
    assert not judge.asked[0].device


def test_an_unmeasured_candidate_that_was_not_shown_correct_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = msgspec.structs.replace(UNMEASURED, correct=None)
    undecided = Verdict(outcome="inconclusive", reason="within noise", correct=True, measured=True)
    assert step(monkeypatch, Judge(a=unknown, b=undecided), [proposal("a"), proposal("b")])[0] is None


def test_no_candidate_is_judged_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    best, made = step(monkeypatch, Judge(), [proposal("a")], clock=11.0)
    assert (best, made) == (None, [])


def test_what_the_judge_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(a=SLOWER, b=SLOWER)
    step(monkeypatch, judge, [proposal("a", applicability="guarded", rule="HST102"), proposal("b")])
    one, two = judge.asked
    assert (one.applicability, one.compile_cost, one.per_case_budget_s) == ("guarded", True, pipeline.SCREEN_BUDGET_S)
    assert (two.applicability, two.compile_cost) == ("safe", False)
    assert one.target == "cuda:80"
    assert one.threshold == pytest.approx(0.02)


# -- the loop -------------------------------------------------------------------------------------------------------------


def test_each_accepted_change_is_the_next_parent_and_the_last_is_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session({"original": [found("one")], "one": [found("two", rule="FAK102")], "two": []})
    judge = Judge(one=accepted(1.5), two=accepted(1.2))
    judge.against_original = {"two\n": accepted(1.8), "one\n": accepted(1.5)}
    run = optimized(monkeypatch, session, judge)
    assert session.diagnosed == ["original", "one", "two"]
    assert judge.pairs == [("original", "one"), ("one", "two"), ("original", "two")]
    assert judge.asked[-1].per_case_budget_s == pipeline.FINAL_BUDGET_S
    assert [(r.round, r.parent, r.rewrite, r.verdict) for r in run.rounds] == [
        (1, 0, "r1", "accepted"), (2, 1, "r2", "accepted"), (3, 0, "final", "accepted"),
    ]  # fmt: skip
    assert run.best == "two\n"
    assert run.best_diff == "--- a/k.py\n+++ b/k.py\n@@ -1 +1 @@\n-original\n+two\n"
    assert [(f.rule, f.grade) for f in run.findings] == [("FAK101", "verified")], "the original's findings, graded by the clock"
    assert set(run.rewrites) == {"r1", "r2"}
    assert session.saved[-1] == run
    assert session.saved[0].best == "one\n", "kept after every accepted round"


def test_a_final_that_is_rejected_leaves_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(one=accepted(1.5))
    session = Session({"original": [found("one")]})
    first = iter([accepted(1.5), SLOWER])
    monkeypatch.setattr(Judge, "__call__", lambda self, request, workers: self.baseline if request.baseline_only else next(first))
    run = optimized(monkeypatch, session, judge)
    assert rounds(run) == [("r1", "accepted"), ("final", "rejected")]
    assert (run.best, run.best_diff) == ("", "")
    assert [f.grade for f in run.findings] == ["located"]


def test_without_a_device_nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session({"original": [found("one", "other")], "one": []}, device=False)
    run = optimized(monkeypatch, session, Judge(one=UNMEASURED, other=UNMEASURED), proposers=("rules", "search"))
    assert rounds(run) == [("r1", "inconclusive"), ("final", "inconclusive")]
    assert run.best == "one\n"
    assert [f.grade for f in run.findings] == ["located"]


def test_nothing_accepted_judges_no_final(monkeypatch: pytest.MonkeyPatch) -> None:
    run = optimized(monkeypatch, Session({"original": [found("one")]}), Judge(one=REJECTED))
    assert rounds(run) == [("r1", "rejected")]
    assert run.best == ""


def test_nothing_found_is_a_run_without_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    run = optimized(monkeypatch, Session({}), Judge())
    assert (run.rounds, run.findings, run.best) == ((), (), "")
    assert [u.what for u in run.unavailable] == ["device timing (level 2)"]


def chain(gains: list[float]) -> tuple[Session, Judge]:
    names = ["original", *(f"s{i}" for i in range(len(gains)))]
    session = Session({old: [found(new, rule=f"FAK{i}")] for i, (old, new) in enumerate(itertools.pairwise(names))})
    judge = Judge(**{name: accepted(gain) for name, gain in zip(names[1:], gains, strict=True)})
    return session, judge


@pytest.mark.parametrize(
    ("gains", "most", "steps"),
    [
        ([1.5, 1.004, 1.004, 1.004, 1.5], 8, 4),  # three small ones in a row: a plateau
        ([1.004, 1.004, 1.5, 1.004, 1.004, 1.004], 8, 6),
        ([1.5, 1.5, 1.5, 1.5], 2, 2),  # as many as were asked for
    ],
)
def test_when_the_search_ends(gains: list[float], most: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session, judge = chain(gains)
    judge.against_original = {f"s{i}\n": accepted(gain) for i, gain in enumerate(gains)}
    run = optimized(monkeypatch, session, judge, rounds=most)
    assert [r.rewrite for r in run.rounds if r.rewrite != "final"] == [f"r{i + 1}" for i in range(steps)]
    assert run.best == f"s{steps - 1}\n"


def test_the_budget_ends_the_search_but_not_the_final_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    session, judge = chain([1.5, 1.5, 1.5])
    usual = session.diagnose

    def slow(case: KernelCase, **more: object) -> Diagnosis:
        session.clock += 6.0
        return usual(case, **more)  # type: ignore[arg-type]

    session.diagnose = slow  # type: ignore[method-assign]
    run = optimized(monkeypatch, session, judge, budget_s=10.0)
    assert rounds(run) == [("r1", "accepted"), ("final", "accepted")]
    assert run.best == "s0\n"


def test_a_step_that_cannot_be_diagnosed_is_still_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    session, judge = chain([1.5])
    session.diagnoses["s0\n"] = KernelError("no launch")  # type: ignore[assignment]
    assert optimized(monkeypatch, session, judge).best == "s0\n"
    session.diagnoses["original\n"] = KernelError("no launch")  # type: ignore[assignment]
    with pytest.raises(KernelError, match="no launch"):
        optimized(monkeypatch, session, judge)


def test_an_original_that_leaves_its_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge()
    note = "reads out of bounds at line 9"
    judge.baseline = Verdict(
        outcome="inconclusive", reason="", checks=(Check(name="interpreter", passed=True, detail=f"fine; {note}", case="odd"),)
    )
    run = optimized(monkeypatch, Session({}), judge)
    assert [(u.what, u.reason) for u in run.unavailable][1:] == [
        ("proof that the original stays within its memory (case odd)", note)
    ]


def test_first_calls_are_timed_again_in_the_final_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = msgspec.structs.replace(accepted(3.0), checks=(Check(name="compile_cost", passed=True),))
    session = Session({"original": [found("one", rule="HST102")]})
    judge = Judge(one=cold)
    optimized(monkeypatch, session, judge)
    assert [r.compile_cost for r in judge.asked] == [True, True]


# -- diagnose and verify ------------------------------------------------------------------------------------------------


def test_diagnose_numbers_and_keeps_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session({"original": [found("one", "two")]})
    monkeypatch.setattr(pipeline, "Session", lambda given, stack: session)
    run = pipeline.diagnose(DiagnoseOptions(target_file="/k.py"))
    assert [f.rewrites for f in run.findings] == [("r1", "r2")]
    assert run.rewrites["r1"].diff.endswith("-original\n+one\n")
    assert session.saved == [run]


def test_level_2_needs_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "Session", lambda given, stack: Session({}))
    with pytest.raises(EvidenceError, match="level 2 was asked for and no device can be timed here") as caught:
        pipeline.diagnose(DiagnoseOptions(target_file="/k.py", level="2"))
    assert caught.value.remedy == "run elsewhere"


def test_verify_is_the_judge_alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    session, judge = Session({}), Judge(one=accepted(1.5), two=SLOWER)
    monkeypatch.setattr(pipeline, "Session", lambda given, stack: session)
    monkeypatch.setattr(pipeline, "judge", judge)
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f"{name}\n")
    run = pipeline.verify(VerifyOptions(old="/k.py", new=str(tmp_path / "one.py"), first_call=True, allow_numerics=True))
    assert [(r.hypothesis, r.verdict) for r in run.rounds] == [("the candidate one.py", "accepted")]
    assert (run.best, session.diagnosed, judge.asked[0].compile_cost, judge.asked[0].allow_numerics) == ("one\n", [], True, True)
    assert pipeline.verify(VerifyOptions(old="/k.py", new=str(tmp_path / "two.py"), case="other")).best == ""
    assert [r.cases for r in judge.asked] == [(), ("other",)]
    with pytest.raises(UsageError, match="no such file"):
        pipeline.verify(VerifyOptions(old="/k.py", new=str(tmp_path / "gone.py")))


def test_rules_are_chosen_by_code_or_slug() -> None:
    def chosen(**options: tuple[str, ...]) -> list[str]:
        session = SimpleNamespace(options=DiagnoseOptions(target_file="/k.py", **options))
        return [r.code for r in pipeline.Session.rules(session)]  # type: ignore[arg-type]

    assert chosen(select=("PIP101", "tail-wave")) == ["GRD107", "PIP101"]
    assert "PIP101" not in chosen(ignore=("unpipelined-load",))
    with pytest.raises(UsageError, match="no rule 'PIP999'"):
        chosen(select=("PIP999",))


def test_a_candidate_lies_under_a_name_that_its_content_decides(tmp_path) -> None:
    case = KernelCase(path="/x/k.py", source=ORIGINAL, kernels=())
    session = SimpleNamespace(case=case, scratch=tmp_path)
    assert pipeline.Session.as_file(session, ORIGINAL) is case  # type: ignore[arg-type]
    made = pipeline.Session.as_file(session, "new\n")  # type: ignore[arg-type]
    assert made.path == str(tmp_path / content_hash("new\n") / "k.py")
    assert (made.source, (tmp_path / content_hash("new\n") / "k.py").read_text()) == ("new\n", "new\n")

"""The engine on recorded evidence, with rules made for the purpose."""

from collections.abc import Iterable

import msgspec
import pytest

from leadline.backends.base import Explanation
from leadline.diagnose.engine import MAX_PROBED, Engine, settled
from leadline.diagnose.recorded import ReplayGatherer
from leadline.errors import EvidenceError, KernelError
from leadline.model import Compiled, Hypothesis, Launch, Probe, ProbeOutcome, Rewrite, SourceFact, Trace, Unavailable, content_hash
from leadline.rules.base import View, refuted
from tests.diagnose.recorded import PROBE, Fake, graded, recording, run


def levels(diagnosis) -> list[int]:
    return [x.level for x in diagnosis.levels]


@pytest.mark.parametrize(
    ("sufficient", "grade", "at", "deepest"),
    [(1, "observed", 1, 1), (2, "observed", 1, 2), (3, "located", 3, 3), (4, "located", 3, 4), (4, "confirmed", 3, 3)],
)
def test_escalation_stops_where_the_tests_hold(sufficient: int, grade: str, at: int, deepest: int) -> None:
    rule = Fake(suspect=lambda r, v: [r.claim(v, sufficient_level=sufficient, grade="observed")], explain=graded(grade, at))
    found = run([rule])
    assert levels(found) == list(range(1, deepest + 1))
    last = found.levels[-1]
    assert (last.located, last.narrowed, last.explained, last.why_deeper) == (True, True, True, "")
    assert all(x.why_deeper for x in found.levels[:-1])
    assert found.view.level == deepest


def test_every_level_says_which_test_failed() -> None:
    rule = Fake(suspect=lambda r, v: [r.claim(v, grade="suspected")], explain=graded("located", 3))
    found = run([rule])
    assert [(x.located, x.explained, x.why_deeper) for x in found.levels] == [
        (False, False, "FAK101 is only suspected"),
        (False, False, "FAK101 is only suspected"),
        (True, True, ""),
    ]


def test_rivals_of_equal_weight_ask_for_more() -> None:
    one, other = Fake(), Fake("FAK102", cause="another_cause")
    found = run([one, other])
    assert levels(found) == [1, 2, 3, 4]
    assert found.levels[0].why_deeper == "FAK101 and FAK102 explain about as much"
    assert found.levels[-1].why_deeper == "inconclusive: FAK101 and FAK102 explain about as much"
    same_cause = Fake("FAK102")
    assert run([one, same_cause]).levels[0].narrowed


def test_deepest_level_is_honoured_and_said() -> None:
    found = run([Fake()], auto=False, deepest=2)
    assert levels(found) == [1, 2]
    assert found.levels[-1].why_deeper == "stopped at level 2 as asked: FAK101 needs evidence of level 3"
    assert found.view.compiled == {}
    assert found.view.messages == {}


def test_without_auto_all_levels_are_visited() -> None:
    rule = Fake(explain=graded("confirmed", 1))
    assert levels(run([rule], auto=False)) == [1, 2, 3, 4]
    assert levels(run([rule])) == [1]


def test_nothing_found_is_said_without_calling_it_inconclusive() -> None:
    found = run([Fake(suspect=lambda r, v: [])])
    assert found.hypotheses == ()
    assert found.levels[-1].why_deeper == "no cause that the rules know is worth 3 %; the limit says how far the floor is"


def test_rules_see_each_level_once_and_nothing_is_found_twice() -> None:
    rule = Fake()
    found = run([rule], auto=False)
    assert [level for what, level in rule.asked if what == "suspect"] == [1, 2, 3, 4]
    assert len(found.hypotheses) == 1


def test_rules_of_other_targets_are_not_asked() -> None:
    rule = Fake()
    rule.targets = ("hip",)  # type: ignore[misc]
    assert run([rule], auto=False).hypotheses == ()
    assert rule.asked == []


@pytest.mark.parametrize("where", ["suspect", "explain", "probes", "conclude", "rewrite"])
def test_a_rule_that_crashes_is_reported_and_the_others_go_on(where: str) -> None:
    def crash(*_: object) -> Iterable:
        raise ZeroDivisionError("no programs")

    made = recording()
    outcome = ProbeOutcome(id="", probe=PROBE, before=0, after=1, flipped=True)
    made = msgspec.structs.replace(made, probes={content_hash(PROBE): outcome})
    script = {"probes": lambda v, h: [PROBE], where: crash}
    found = run([Fake(**script), Fake("FAK102", high=1.6)], made, auto=False)
    assert "FAK102" in [h.rule for h in found.hypotheses]
    assert set(found.errors) == {found.errors[0]}
    assert found.errors[0].startswith(f"rule FAK101 failed in {where}: ZeroDivisionError: no programs (test_engine.py:")


@pytest.mark.parametrize("name", ["FAK101", "fake"])
def test_suppression_comment(name: str) -> None:
    made = recording()
    lines = made.case.source.splitlines(keepends=True)
    lines[14] = lines[14].rstrip("\n") + f"  # leadline: ignore[{name}] known\n"
    silent = msgspec.structs.replace(made, case=msgspec.structs.replace(made.case, source="".join(lines)))
    assert len(run([Fake()], made).hypotheses) == 1
    found = run([Fake()], silent)
    assert found.hypotheses == ()
    assert found.refuted == ()
    other = Fake("FAK102")
    other.slug = "other"  # type: ignore[misc]
    assert len(run([other], silent).hypotheses) == 1


def test_refuted_hypotheses_are_kept_apart() -> None:
    fact = SourceFact(id="", what="128 bits after all")
    found = run([Fake(explain=lambda v, h: refuted(h, "the compiler solved it", fact) if v.level == 3 else h)], auto=False)
    assert found.hypotheses == ()
    assert [(h.refuted, h.counter) for h in found.refuted] == [("the compiler solved it", (fact,))]
    assert found.rewrites == {}


def test_negligible_estimates_are_dropped() -> None:
    assert run([Fake(low=1.0, high=1.02)], auto=False).hypotheses == ()


def test_unavailable_evidence_is_reported() -> None:
    made = msgspec.structs.replace(recording(), samples=(), compiled={}, explained={})
    found = run([Fake(probes=lambda v, h: [PROBE])], made, auto=False)
    assert [(u.what, u.reason) for u in found.unavailable] == [
        ("addresses of sampled programs", "not recorded"),
        ("device timing (level 2)", "not recorded"),
        ("compile", "not recorded"),
        ("explain of matmul_kernel", "not recorded"),
        ("probe: one stage", "not recorded"),
    ]
    assert len(found.hypotheses) == 1
    assert found.hypotheses[0].grade == "observed"


def test_missing_debug_channel_is_reported_and_its_remarks_are_used() -> None:
    made = recording()
    index = next(iter(made.traces.values())).launches[0].index
    made = msgspec.structs.replace(made, explained={index: Explanation(debug_channel=False)})
    found = run([Fake()], made, auto=False)
    assert [u.what for u in found.unavailable] == ["device timing (level 2)", "the passes' own debug output"]
    assert found.view.messages == {index: ()}


def test_a_small_case_that_stands_in_is_reported() -> None:
    made = recording()
    name, trace = next(iter(made.traces.items()))
    made = msgspec.structs.replace(made, traces={name: msgspec.structs.replace(trace, fallback="too large to make")})
    found = run([Fake()], made)
    assert found.unavailable[0] == Unavailable(
        what=f"full-size launch of {name}", reason="too large to make", remedy="shapes of a small case stand in"
    )


def test_other_cases_that_fail_are_reported() -> None:
    made = recording()

    class Gatherer(ReplayGatherer):
        def trace(self, case_name: str) -> Trace:
            if case_name == "broken":
                raise KernelError("make_inputs raised ValueError")
            return super().trace(case_name)

    name = next(iter(made.traces))
    found = Engine(Gatherer(made), [Fake()], target="cuda:90").run(name, ["broken", name])
    assert next((u.what, u.reason) for u in found.unavailable) == ("launches of case broken", "make_inputs raised ValueError")
    assert len(found.view.others) == 1


def test_no_launch_is_an_error() -> None:
    made = recording()
    name, trace = next(iter(made.traces.items()))
    made = msgspec.structs.replace(made, traces={name: msgspec.structs.replace(trace, launches=())})
    with pytest.raises(KernelError, match="launch starts no Triton kernel"):
        run([Fake()], made)
    with pytest.raises(EvidenceError, match="no recorded trace of case 'gone'"):
        Engine(ReplayGatherer(made), [], target="cuda:90").run("gone")


def test_a_kernel_that_does_not_compile_is_an_error() -> None:
    made = recording()
    index, compiled = next(iter(made.compiled.items()))
    broken = msgspec.structs.replace(compiled, error="shapes do not match", error_line=18)
    with pytest.raises(KernelError, match="kernel matmul_kernel does not compile for cuda:90: shapes do not match") as caught:
        run([Fake()], msgspec.structs.replace(made, compiled={index: broken}), auto=False)
    assert caught.value.where.endswith(":18")


def probed(rules: list, outcomes: dict[Probe, ProbeOutcome], **options):
    made = msgspec.structs.replace(recording(), probes={content_hash(p): o for p, o in outcomes.items()})
    return run(rules, made, auto=False, **options)


def test_probes_confirm_or_refute() -> None:
    yes = ProbeOutcome(id="", probe=PROBE, before=0, after=2, flipped=True)
    no = msgspec.structs.replace(yes, after=0, flipped=False)
    failed = msgspec.structs.replace(no, error="does not compile")
    rule = Fake(probes=lambda v, h: [PROBE])
    assert probed([rule], {PROBE: yes}).hypotheses[0].grade == "confirmed"
    refuted_one = probed([rule], {PROBE: no}).refuted[0]
    assert refuted_one.refuted == "granting num_stages = 3 left async_copy at 0"
    assert refuted_one.counter == (no,)
    undecided = probed([rule], {PROBE: failed}).hypotheses[0]
    assert (undecided.grade, undecided.refuted) == ("observed", "")
    assert probed([rule], {PROBE: yes}).view.outcomes == (yes,)


def test_only_the_best_hypotheses_are_probed() -> None:
    asked: list[str] = []

    def probes(view: View, hypothesis: Hypothesis) -> list[Probe]:
        asked.append(hypothesis.rule)
        return []

    rules = [Fake(f"FAK{200 + i}", high=1.5 + i / 10, probes=probes) for i in range(MAX_PROBED + 2)]
    probed(rules, {})
    assert len(asked) == MAX_PROBED
    assert asked[0] == f"FAK{200 + MAX_PROBED + 1}"


def test_rewrites_carry_the_name_of_their_finding() -> None:
    made = Rewrite(id="", rule="FAK101", title="mend", source="x = 1\n")
    found = run([Fake(rewrite=lambda v, h: [made])])
    (name,) = found.rewrites
    assert name == f"FAK101:{found.hypotheses[0].key}"
    assert found.rewrites[name] == (msgspec.structs.replace(made, finding=name),)


def test_progress_names_the_stages() -> None:
    seen: list[tuple[str, int, int]] = []
    run([Fake()], auto=False, progress=lambda *step: seen.append(step))
    assert seen == [
        ("reading the source", 1, 4),
        ("timing", 2, 4),
        ("compiling", 3, 4),
        ("asking the compiler", 4, 4),
        ("probing", 0, 1),
    ]


# -- which launches -----------------------------------------------------------------------------------------------------


def launch(index: int, **more: object) -> Launch:
    common: dict = {
        "index": index, "kernel": "k", "kernel_file": "k.py", "kernel_line": 3, "kernel_module": "", "call_file": "k.py", "call_line": 9,
        "grid": (1, 1, 1), "arguments": (),
    }  # fmt: skip
    return Launch(**{**common, **more})


def variants(first: int, count: int, **more: object) -> list[Launch]:
    return [launch(first + i, variant=f"v{i}", variant_index=i, variants=count, **more) for i in range(count)]


def test_of_autotuned_variants_the_fastest_predicted_is_kept() -> None:
    trace = Trace(case="c", launches=(launch(0), *variants(1, 3), *variants(4, 2, call_line=20)))
    assert [x.index for x in settled(trace, {1: 5.0, 2: 4.0, 3: 6.0, 5: 1.0}).launches] == [0, 2, 5]
    assert [x.index for x in settled(trace, {}).launches] == [0, 1, 4], "the first where nothing is predicted"
    assert [x.index for x in settled(trace, {1: 2.0, 2: 2.0}).launches] == [0, 1, 4], "the first of equals"


def test_the_same_autotuned_launch_twice_keeps_two() -> None:
    trace = Trace(case="c", launches=(*variants(0, 2), *variants(2, 2)))
    assert [x.index for x in settled(trace, {1: 1.0, 0: 2.0, 2: 1.0, 3: 2.0}).launches] == [1, 2]


def test_one_launch_of_each_kind_is_compiled() -> None:
    made = recording()
    name, trace = next(iter(made.traces.items()))
    first = trace.launches[0]
    twins = tuple(msgspec.structs.replace(first, index=i) for i in range(3))
    other = msgspec.structs.replace(
        first, index=3, arguments=tuple(msgspec.structs.replace(a, value=64 if a.name == "BK" else a.value) for a in first.arguments[:-1])
    )
    asked: list[int] = []

    class Gatherer(ReplayGatherer):
        def compile(self, launches: Iterable[Launch]) -> dict[int, Compiled | Unavailable]:
            asked.extend(x.index for x in launches)
            return {}

    made = msgspec.structs.replace(made, traces={name: msgspec.structs.replace(trace, launches=(*twins, other))}, samples=())
    Engine(Gatherer(made), [], target="cuda:90", auto=False, deepest=3).run(name)
    assert asked == [0, 3]

"""Amdahl's law, grades, evidence makers and what a view answers."""

import msgspec
import pytest

from leadline.model import (
    AccessSample,
    Argument,
    Ceilings,
    Compiled,
    CompilerMessage,
    IrFact,
    Launch,
    LaunchCost,
    LaunchSample,
    LaunchTiming,
    LoopSample,
    Metric,
    Option,
    Probe,
    ProbeOutcome,
    Profile,
    SourceFact,
    SourceFacts,
    Trace,
)
from leadline.rules.base import Rule, View, all_rules, amdahl, located, metric, raised, refuted, rule, seen
from tests.diagnose.recorded import Fake


def launch(index: int, **more: object) -> Launch:
    common: dict = {
        "index": index, "kernel": "k", "kernel_file": "/x/k.py", "kernel_line": 3, "kernel_module": "", "call_file": "/x/k.py",
        "call_line": 9, "grid": (1, 1, 1), "arguments": (Argument(name="n", type="i32", value=5),),
    }  # fmt: skip
    return Launch(**{**common, **more})


FACTS = SourceFacts(path="/x/k.py", texts={"/x/k.py": "text\n"})
COSTS = {0: LaunchCost(launch=0, total_us=30.0), 1: LaunchCost(launch=1, total_us=10.0)}
VIEW = View(source=FACTS, trace=Trace(case="c", launches=(launch(0, repeats=3), launch(1))), costs=COSTS)


def test_amdahl() -> None:
    assert amdahl(2.0, 1.0) == 2.0
    assert amdahl(2.0, 0.5) == pytest.approx(4 / 3)
    assert amdahl(1e12, 0.5) == pytest.approx(2.0)
    assert amdahl(2.0, 0.0) == 1.0
    assert amdahl(0.0, 1.0) < 1e-8, "an endless slowdown is no division by zero"


def test_time_is_measured_else_predicted_else_one() -> None:
    assert VIEW.time_us(0) == 30.0
    assert VIEW.time_us(7) == 1.0
    timing = LaunchTiming(launch=0, kernel="k", median_us=12.0, low_us=11.0, high_us=13.0, runs=9)
    measured = msgspec.structs.replace(VIEW, profile=Profile(device="d", case="c", launches=(timing,)))
    assert (measured.time_us(0), measured.time_us(1)) == (12.0, 10.0)


def test_share_counts_repeats() -> None:
    assert (VIEW.share(0), VIEW.share(1)) == (0.9, 0.1)
    assert VIEW.share(9) == 0.0
    assert View(source=FACTS).share(0) == 1.0


def test_hypothesis_is_weighed_once_by_its_launch() -> None:
    made = Fake().hypothesis(VIEW, VIEW.launches[1], line=4, claim="slow", low=1.0, high=2.0)
    assert made.estimate.kind == "local"
    assert (made.estimate.low, made.estimate.high) == (1.0, pytest.approx(1 / 0.95))
    assert (made.span.file, made.span.line, made.span.end_line, made.kernel, made.launch, made.key) == ("/x/k.py", 4, 4, "k", 1, "k.py:4")
    whole = Fake().hypothesis(VIEW, None, line=4, claim="slow", low=1.0, high=2.0)
    assert (whole.estimate.kind, whole.estimate.high, whole.launch, whole.span.file) == ("global", 2.0, -1, "/x/k.py")


def test_grades_rise_and_never_fall() -> None:
    fact = SourceFact(id="", what="seen")
    made = Fake().hypothesis(VIEW, None, line=4, claim="slow", low=1.0, high=2.0, grade="located")
    assert raised(made, "observed", fact).grade == "located"
    assert raised(made, "confirmed").grade == "confirmed"
    assert raised(made, "observed", fact).facts == (fact,)
    no = refuted(made, "not so", fact)
    assert (no.refuted, no.counter, no.grade) == ("not so", (fact,), "located")


def test_evidence_makers() -> None:
    one = launch(1)
    assert seen("a stride", "k.py", 3) == SourceFact(id="", what="a stride", file="k.py", line=3)
    assert metric("active", 0.5, "", one, 4) == Metric(
        id="", name="active", value=0.5, unit="", predicted=True, launch=1, file="/x/k.py", line=4, collector="sampling"
    )
    assert located("ptx", "ld.global", one, 5, 3) == IrFact(id="", stage="ptx", what="ld.global", value=3, launch=1, file="/x/k.py", line=5)


def outcome(flipped: bool, *, error: str = "") -> ProbeOutcome:
    probe = Probe(claim="one", grants=(Option(name="num_stages", value=3),), signature="async_copy", expect="increase")
    return ProbeOutcome(id="", probe=probe, before=0, after=int(flipped), flipped=flipped, error=error)


@pytest.mark.parametrize(
    ("outcomes", "grade", "is_refuted"),
    [
        ((), "observed", False),
        ((outcome(True),), "confirmed", False),
        ((outcome(False), outcome(True)), "confirmed", False),
        ((outcome(False),), "observed", True),
        ((outcome(False), outcome(False, error="failed")), "observed", False),
        ((outcome(True, error="failed"),), "observed", False),
    ],
)
def test_conclude(outcomes: tuple[ProbeOutcome, ...], grade: str, is_refuted: bool) -> None:
    claim = Fake().hypothesis(VIEW, None, line=4, claim="slow", low=1.0, high=2.0, grade="observed")
    found = Rule.conclude(Fake(), VIEW, claim, outcomes)
    assert (found.grade, bool(found.refuted)) == (grade, is_refuted)
    kept = [o for o in outcomes if o.flipped and not o.error] if grade == "confirmed" else []
    assert list(found.facts) == kept
    assert list(found.counter) == (list(outcomes) if is_refuted else [])


def test_a_bare_rule_claims_nothing() -> None:
    bare, claim = Rule(), Fake().hypothesis(VIEW, None, line=4, claim="slow", low=1.0, high=2.0)
    assert (list(bare.suspect(VIEW)), list(bare.probes(VIEW, claim)), list(bare.rewrite(VIEW, claim))) == ([], [], [])
    assert bare.explain(VIEW, claim) is claim


def test_view_finds_samples_by_line_and_kind() -> None:
    load, store = AccessSample(line=4, kind="load"), AccessSample(line=4, kind="store")
    loop = LoopSample(line=6, trips_min=1, trips_max=2, trips_mean=1.5)
    view = msgspec.structs.replace(VIEW, samples={0: LaunchSample(launch=0, programs=1, sampled=1, accesses=(load, store), loops=(loop,))})
    assert view.access(0, 4) == load
    assert view.access(0, 4, "store") == store
    assert view.access(0, 5) is None
    assert view.access(1, 4) is None
    assert view.loop_trips(0, 6) == loop
    assert view.loop_trips(0, 7) is None
    assert view.loop_trips(1, 6) is None


def test_view_reads_counters_of_what_was_compiled() -> None:
    compiled = Compiled(launch=0, target="cuda:90", triton="3", kernel="k", counters={"barrier": 2}, line_counters={4: {"barrier": 1}})
    view = msgspec.structs.replace(VIEW, compiled={0: compiled, 1: msgspec.structs.replace(compiled, launch=1, error="no")})
    assert (view.counter(0, "barrier"), view.counter(0, "barrier", 4), view.counter(0, "barrier", 5)) == (2, 1, 0)
    assert view.counter(0, "atomic") == 0, "compiled without it"
    assert view.counter(1, "barrier") is None, "does not compile"
    assert view.counter(2, "barrier") is None, "was not compiled"


def test_view_finds_messages() -> None:
    first = CompilerMessage(id="", channel="debug", text="a", kind="one", line=4)
    second = CompilerMessage(id="", channel="debug", text="b", kind="two", line=5)
    view = msgspec.structs.replace(VIEW, messages={0: (first, second)})
    assert view.message(0, "two", "one") == first
    assert view.message(0, "two", "one", line=5) == second
    assert view.message(0, "three") is None
    assert view.message(1, "one") is None


def test_view_without_evidence() -> None:
    empty = View(source=FACTS)
    assert (empty.launches, empty.sms, empty.text("/x/k.py"), empty.text("other")) == ((), 132, "text\n", "")
    assert empty.kernel(launch(0)) is None
    device = Ceilings(
        device="d", copy_bytes_per_s=1, l2_bytes_per_s=1, matmul_flops={}, fma_flops=1, launch_us=1, sms=78, l2_bytes=1, smem_per_sm=1,
        regs_per_sm=1, threads_per_sm=1,
    )  # fmt: skip
    assert msgspec.structs.replace(empty, ceilings=device).sms == 78


def test_rules_are_found_by_code_and_slug() -> None:
    known = rule("PIP101")
    assert known is not None
    assert rule(known.slug) is known
    assert rule("PIP999") is None
    assert [r.code for r in all_rules()] == sorted(r.code for r in all_rules())


def test_what_no_device_timed_is_not_measured() -> None:
    timing = LaunchTiming(launch=0, kernel="k", median_us=12.0, low_us=11.0, high_us=13.0, runs=9)
    view = View(source=SourceFacts(path="k.py"), profile=Profile(device="d", case="c", launches=(timing,)))
    assert (view.measured_us(0), view.measured_us(1), view.time_us(1)) == (12.0, None, 1.0)
    assert View(source=SourceFacts(path="k.py")).measured_us(0) is None

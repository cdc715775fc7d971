"""Recording passes answers on and keeps them; replaying gives them back and says what is missing."""

import msgspec
import pytest

from leadline.diagnose.engine import Engine
from leadline.diagnose.recorded import Recording, RecordingGatherer, ReplayGatherer
from leadline.errors import EvidenceError
from leadline.model import Option, Probe, ProbeOutcome, Profile, Unavailable, content_hash
from tests.diagnose.recorded import PROBE, Fake, recording

OUTCOME = ProbeOutcome(id="", probe=PROBE, before=0, after=1, flipped=True)


def whole() -> Recording:
    made = recording()
    return msgspec.structs.replace(
        made,
        probes={content_hash(PROBE): OUTCOME},
        profile=Profile(device="H200", case=next(iter(made.traces)), total_us=10.0),
    )


def recorded(made: Recording, **options) -> Recording:
    gather = RecordingGatherer(ReplayGatherer(made), made.case, made.target)
    Engine(gather, [Fake(probes=lambda v, h: [PROBE])], target=made.target, auto=False, **options).run(next(iter(made.traces)))
    return gather.recording()


def test_what_is_replayed_is_recorded_again() -> None:
    made = recorded(whole())
    assert recorded(made) == made
    assert set(made.probes) == {content_hash(PROBE)}
    assert (len(made.traces), len(made.samples), len(made.compiled), len(made.explained)) == (1, 1, 1, 1)
    assert made.profile == whole().profile


def test_recordings_survive_json() -> None:
    made = whole()
    assert msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(made, str_keys=True)), type=Recording) == made


def test_bulk_and_times_are_left_out() -> None:
    made = whole()
    compiled = {i: msgspec.structs.replace(c, stages={"ptx": "0" * 64}, seconds=3.0) for i, c in made.compiled.items()}
    explained = {i: msgspec.structs.replace(e, seconds=3.0) for i, e in made.explained.items()}
    again = recorded(msgspec.structs.replace(made, compiled=compiled, explained=explained))
    assert [(c.stages, c.machine, c.seconds) for c in again.compiled.values()] == [({}, (), 0.0)]
    assert [e.seconds for e in again.explained.values()] == [0.0]
    assert again.triton == next(iter(compiled.values())).triton


def test_absent_answers_are_not_recorded() -> None:
    made = msgspec.structs.replace(whole(), samples=(), compiled={}, explained={}, probes={}, profile=None)
    again = recorded(made)
    assert (again.samples, again.compiled, again.explained, again.probes, again.profile, again.triton) == ((), {}, {}, {}, None, "")


def test_replay_says_what_is_missing() -> None:
    made = recording()
    gather = ReplayGatherer(msgspec.structs.replace(made, samples=(), compiled={}, explained={}))
    (launch,) = next(iter(made.traces.values())).launches
    missing = "not recorded"
    assert gather.samples((launch,)) == Unavailable(what="addresses of sampled programs", reason=missing)
    assert gather.profile("square") == Unavailable(what="device timing (level 2)", reason=missing)
    assert gather.compile([launch]) == {launch.index: Unavailable(what="compile", reason=missing)}
    assert gather.explain(launch) == Unavailable(what="explain of matmul_kernel", reason=missing)
    assert gather.probe(PROBE, launch) == Unavailable(what="probe: one stage", reason=missing)
    with pytest.raises(EvidenceError, match="no recorded trace of case 'gone'"):
        gather.trace("gone")


def test_probes_are_told_apart_by_content() -> None:
    made = whole()
    (launch,) = next(iter(made.traces.values())).launches
    gather = ReplayGatherer(made)
    assert gather.probe(PROBE, launch) == OUTCOME
    other = Probe(claim=PROBE.claim, grants=(Option(name="num_stages", value=4),), signature="async_copy", expect="increase")
    assert isinstance(gather.probe(other, launch), Unavailable)


def test_profile_changes_the_limit() -> None:
    made = whole()
    gather = ReplayGatherer(made)
    view = Engine(gather, [], target="cuda:90", auto=False, deepest=2).run(next(iter(made.traces))).view
    assert view.profile is not None
    assert view.limit is not None
    assert view.limit.time_us == 10.0
    assert view.limit.fraction == pytest.approx(view.limit.floor_us / 10.0)

from simulated import SimulatedDevice

from leadline.verify import clock, statistics


def side(device: SimulatedDevice, us: float, log: list[str] | None = None, name: str = "") -> clock.Side:
    def call(index: int) -> tuple[str, int]:
        if log is not None:
            log.append(name)
        device.work(us)
        return name, index

    return clock.Side(call, lambda index: None)


def test_the_ratio_is_found_and_kept_output_is_the_candidates() -> None:
    device = SimulatedDevice()
    renewed: list[int] = []
    race = clock.race(device, side(device, 50, name="old"), side(device, 25, name="new"), 3, budget_s=0.02, seed=1, before=renewed.append)
    assert 1.95 < statistics.speedup(race.original, race.candidate).mid < 2.05
    assert len(race.kept) == 1 + clock.KEPT
    assert all(output == ("new", index) for index, output in race.kept)
    assert renewed == [race.kept[0][0]]
    assert len(race.original) == len(race.candidate) >= clock.MIN_BLOCKS


def test_outputs_are_kept_from_all_over_the_race_and_dropped_when_their_inputs_change() -> None:
    device, calls = SimulatedDevice(), [0]

    def call(index: int) -> int:
        calls[0] += 1
        device.work(20)
        return calls[0]

    late = 0
    for seed in range(10):
        changed_at: list[int] = []
        calls[0] = 0
        new = clock.Side(call, lambda index: None)
        old = side(device, 20)
        race = clock.race(device, old, new, 1, budget_s=0.05, seed=seed, before=lambda index, at=changed_at: at.append(calls[0]))
        assert all(number > changed_at[0] for _, number in race.kept)  # one input set: all that was kept before is gone
        late += sum(number > calls[0] / 2 for _, number in race.kept)
    assert late > 10


def test_blocks_are_abba_in_random_order() -> None:
    device, log = SimulatedDevice(), list[str]()
    race = clock.race(device, side(device, 9, log, "A"), side(device, 9, log, "B"), 2, budget_s=0.0, seed=4)
    start = 4 + 6 + 2 * 2  # warm-up, host times, then one of each per input set
    blocks = ["".join(log[start + 4 * i : start + 4 * i + 4]) for i in range(len(race.original))]
    assert set(blocks) == {"ABBA", "BAAB"}


def test_the_budget_bounds_the_blocks() -> None:
    device = SimulatedDevice()
    short = clock.race(device, side(device, 1000), side(device, 1000), 1, budget_s=0.001, seed=0)
    long = clock.race(device, side(device, 1000), side(device, 1000), 1, budget_s=0.2, seed=0)
    assert len(short.original) == clock.MIN_BLOCKS < len(long.original) <= clock.MAX_BLOCKS


def test_the_cache_is_flushed_before_every_timed_call_and_restores_are_not_timed() -> None:
    device = SimulatedDevice(noise=0)
    restored: list[int] = []

    def restore(index: int) -> None:
        restored.append(index)
        device.work(500)

    taken = clock.sample(device, clock.Side(lambda index: device.work(10), restore), 2)
    assert (device.flushes, restored) == (1, [2])
    assert 10 <= taken.us < 15


def test_work_on_another_stream_shows_after_the_end() -> None:
    device = SimulatedDevice()
    hidden = clock.Side(lambda index: device.side_work(400), lambda index: None)
    race = clock.race(device, side(device, 100), hidden, 1, budget_s=0.0, seed=0)
    assert race.late_us > 100
    assert clock.race(device, side(device, 100), side(device, 50), 1, budget_s=0.0, seed=0).late_us < 20

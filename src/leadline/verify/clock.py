"""Times two programs against each other on a device: random ABBA order, cold L2, rotating inputs. Knows a device by its seam only."""

import random
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

MIN_BLOCKS = 12
MAX_BLOCKS = 200
MAX_HOLD_US = 1000.0
KEPT = 4
_WALLS = 15


class Device(Protocol):
    """What timing asks of a device. Times in microseconds, `now` in seconds; `collect.device.CudaDevice` is the real one."""

    name: str
    l2_bytes: int

    def flush(self) -> None:
        """Enqueue work that evicts the L2 and keeps the device busy while the host prepares the timed call."""

    def hold(self, us: float) -> None:
        """Enqueue work that keeps the device busy for about `us` without touching memory."""

    def event(self) -> Any:
        """Enqueue a time stamp behind all work so far and return it."""

    def elapsed_us(self, start: Any, end: Any) -> float: ...
    def wait(self, event: Any) -> None:
        """Block the host until the stamp has been reached."""

    def synchronize(self) -> None:
        """Block the host until every stream of the device is idle."""

    def now(self) -> float: ...


class Sample(NamedTuple):
    us: float
    wall_us: float  # host time from the call to an idle device, the flush included
    late_us: float  # host time that the device stayed busy after the end event
    host_us: float  # host time until the call returned: what must be covered for the stamps to see the device alone
    output: Any


class Side(NamedTuple):
    """One program: `call(k)` runs it on input set k; `restore(k)` undoes what it did to that set, outside the timed region."""

    call: Callable[[int], Any]
    restore: Callable[[int], None]


def sample(device: Device, side: Side, index: int, *, cover: bool = True, hold_us: float = 0.0) -> Sample:
    """One timed call: restore, hold, flush, stamp, call, stamp, then wait for the stamp and for the whole device.

    `hold_us` must exceed the host time of the call, or the stamps would see the device wait for the host.
    """
    side.restore(index)
    device.synchronize()
    if cover:
        device.hold(hold_us)
        device.flush()
    begin = device.now()
    start = device.event()
    output = side.call(index)
    returned = device.now()
    end = device.event()
    device.wait(end)
    reached = device.now()
    device.synchronize()
    idle = device.now()
    return Sample(device.elapsed_us(start, end), (idle - begin) * 1e6, (idle - reached) * 1e6, (returned - begin) * 1e6, output)


class Race(NamedTuple):
    original: tuple[tuple[float, float], ...]
    candidate: tuple[tuple[float, float], ...]
    original_wall_us: float
    candidate_wall_us: float
    late_us: float
    kept: tuple[tuple[int, Any], ...]  # (input set, output) of timed calls of the candidate: one on changed inputs, others at random


def race(
    device: Device, original: Side, candidate: Side, sets: int, *, budget_s: float, seed: int,
    before: Callable[[int], None] | None = None, min_blocks: int = MIN_BLOCKS, max_blocks: int = MAX_BLOCKS,
    keep: int = KEPT,
) -> Race:  # fmt: skip
    """Blocks of ABBA or BAAB, chosen at random, until the budget is spent (at least `min_blocks`).

    `before(k)` is called once, ahead of a randomly chosen block, to change input set k in place: its timed call's output is kept
    for re-verification, so an answer replayed from a cache shows. So are the outputs of `keep` calls drawn from all the timed ones: a
    program that does its work only while it may be watched must leave it undone in most calls to gain by it.
    """
    rng, draw = random.Random(seed), random.Random(seed + 1)
    started = device.now()
    for side in (original, candidate, original, candidate):
        sample(device, side, 0)  # warm-up: compile, autotune, fill caches
    hosts = [sample(device, side, 0).host_us for side in (original, candidate) for _ in range(3)]
    # A wrapper that waits for the device has a host time that no hold can cover; its cost is real and stays in the figure.
    hold = min(MAX_HOLD_US, 2.0 * statistics.median(hosts) + 30.0)
    warm = device.now()
    for index in range(sets):
        for side in (original, candidate):
            sample(device, side, index, hold_us=hold)
    per_block = max(1e-6, (device.now() - warm) / max(1, sets) * 2)
    left = budget_s - (device.now() - started)
    blocks = max(min_blocks, min(max_blocks, int(left / per_block)))
    special = rng.randrange(min_blocks)
    changed: list[tuple[int, Any]] = []
    drawn: list[tuple[int, Any]] = []
    timed = 0
    old: list[tuple[float, float]] = []
    new: list[tuple[float, float]] = []
    late: dict[bool, list[float]] = {True: [], False: []}
    for block in range(blocks):
        if block >= min_blocks and device.now() - started > 2 * budget_s:
            break
        index = rng.randrange(sets)
        if block == special and before is not None:
            before(index)
            drawn = [(k, output) for k, output in drawn if k != index]  # they answer to inputs that are gone
        first = rng.random() < 0.5
        times: dict[bool, list[float]] = {True: [], False: []}
        for is_original in ((True, False, False, True) if first else (False, True, True, False)):
            taken = sample(device, original if is_original else candidate, index, hold_us=hold)
            times[is_original].append(taken.us)
            late[is_original].append(taken.late_us)
            if is_original:
                continue
            timed += 1
            if block == special and not changed:
                changed.append((index, taken.output))
            elif len(drawn) < keep:
                drawn.append((index, taken.output))
            elif draw.random() * timed < keep:
                drawn[draw.randrange(keep)] = (index, taken.output)
        old.append((times[True][0], times[True][1]))
        new.append((times[False][0], times[False][1]))
    walls = [
        _low_quartile([sample(device, s, i % sets, cover=False).wall_us for i in range(_WALLS)]) for s in (original, candidate)
    ]
    # Work that outlives the end stamp is there in every call; a busy host only makes some calls look so. Hence the low quartile, and
    # the original as the yardstick.
    behind = max(0.0, _low_quartile(late[False]) - _low_quartile(late[True]))
    return Race(tuple(old), tuple(new), walls[0], walls[1], behind, (*changed, *drawn))


def _low_quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]

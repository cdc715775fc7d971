import ast

import pytest

from leadline.model import LaunchCost, LoopSample
from leadline.rules.grid import work
from leadline.rules.grid.examples.grid_underfill import BEFORE as LONG
from tests.rules.grid.views import constant, line_of, number, tensor, view


def long_row(programs: int = 8, **more):
    arguments = (tensor("x_ptr", (programs, 4096), 1), tensor("y_ptr", (programs,), 2), number("n", 4096), constant("BLOCK", 1024))
    return view(LONG, "energy_kernel", arguments, (programs, 1, 1), **more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p * 4 + r", (8, 11)),
        ("(p + 1) * B", (48, 48)),
        ("tl.cdiv(n, B)", (7, 7)),
        ("r % 2", (0, 1)),
        ("-r", (-3, 0)),
        ("min(n, r)", (0, 3)),
        ("r // 2", (0, 1)),
        ("r[:, None].to(tl.int64)", (0, 3)),
        ("tl.arange(0, B)", (0, 15)),
        ("triton.next_power_of_2(n)", (128, 128)),
    ],
)
def test_bounds_of_index_expressions(text: str, expected: tuple[int, int]) -> None:
    known = {"p": (2.0, 2.0), "r": (0.0, 3.0), "n": (100.0, 100.0), "B": (16.0, 16.0)}
    assert work.bounds(work.parse(text), known) == expected


def test_bounds_of_the_unknown_are_unknown() -> None:
    assert work.bounds(work.parse("a + 1"), {}) is None
    assert work.bounds(work.parse("tl.load(p)"), {"p": (0.0, 0.0)}) is None
    assert work.parse("a +") is None
    assert ast.unparse(work.definition("x = a + 1") or ast.Constant(0)) == "a + 1"


def test_trips_are_sampled_or_computed() -> None:
    found = long_row()
    launch = found.launches[0]
    facts = found.kernel(launch)
    assert facts
    assert work.trips(found, launch, facts.loops[0], facts) == 4
    sampled = long_row(loops=(LoopSample(line=facts.loops[0].line, trips_min=1, trips_max=9, trips_mean=5.0),))
    assert work.trips(sampled, launch, facts.loops[0], facts) == 5.0
    assert work.depth_trips(found, launch, facts.loops[0], facts) == 4
    assert work.widest(found, launch, facts) == (1024, line_of(LONG, "acc =")) or work.widest(found, launch, facts)[0] == 1024


def test_a_split_shortens_the_chain_and_wakes_multiprocessors() -> None:
    cost = LaunchCost(launch=0, dram_us=10.0, l2_us=5.0, compute_us=2.0, latency_us=400.0, launch_us=3.0, total_us=420.0)
    found = long_row(cost=cost)
    launch = found.launches[0]
    one, many = work.modelled_us(found, launch, cost), work.modelled_us(found, launch, cost, split=16, chain=16)
    assert one == pytest.approx(420.0)
    assert many < one / 10
    gain = work.gain(found, launch, split=16, chain=16)
    assert gain is not None
    assert gain == pytest.approx(one / many)
    assert work.gain(long_row(), launch) is None


def test_numbers_threads_and_residents() -> None:
    found = long_row(warps=8)
    launch = found.launches[0]
    assert work.numbers(launch) == {"n": 4096, "BLOCK": 1024}
    assert work.number("n // BLOCK", launch) == 4
    assert work.threads(launch) == 256
    assert work.resident(launch, found) == 8
    assert work.program_bytes(found, launch) == 0
    assert [x.index for x, _ in work.launched(found)] == [0]

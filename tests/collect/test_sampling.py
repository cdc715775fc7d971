"""Addresses of sampled programs, against figures known by reasoning."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
from launch_records import CASE, KERNELS, launch, line_of, tensor
from msgspec import structs

from leadline.collect.sampling import SampleRequest
from leadline.collect.sampling import addresses as figures
from leadline.collect.sampling.recorder import planned
from leadline.execution.worker import Worker
from leadline.model import AccessSample, Argument, Launch, LaunchSample

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("interpret", environment={"TRITON_INTERPRET": "1"}) as started:
        yield started


def sampled(worker: Worker, *launches: Launch, **request) -> tuple[LaunchSample, ...]:
    asked = SampleRequest(case=CASE, launches=launches, **{"budget_s": 20.0, **request})
    return worker.call("leadline.collect.sampling:sample", asked, tuple[LaunchSample, ...])


def access(sample: LaunchSample, kind: str, mark: str, pointer: str = "") -> AccessSample:
    found = [a for a in sample.accesses if (a.kind, a.line) == (kind, line_of(mark)) and pointer in ("", a.pointer)]
    assert len(found) == 1, sample
    return found[0]


def test_copy_with_a_masked_tail(worker):
    n = 1024 * 1000 + 512
    (sample,) = sampled(worker, launch("copy", (1001, 1, 1), tensor("x", n, storage=0), tensor("y", n, storage=1), n=n, BLOCK=1024))
    load = access(sample, "load", "copy.load")
    assert (load.pointer, load.file, load.itemsize, load.lanes) == ("x", str(KERNELS), 4, 1024)
    assert (load.executions, load.sector_efficiency, load.contiguous, load.alignment) == (1.0, 1.0, 1024, 16)
    assert load.active == pytest.approx(1 - 0.5 / 1001, abs=1e-4)
    assert load.total == pytest.approx(4 * n, rel=1e-3)
    assert load.unique == pytest.approx(4 * n, rel=1e-3)
    assert (load.repeat, load.shared, load.indirect, load.dead) == (1.0, {0: 0.0}, False, 0.0)
    assert access(sample, "store", "copy.store").pointer == "y"
    assert (sample.programs, sample.sampled, sample.note) == (1001, 6, "")


def test_an_offset_and_an_odd_start_lower_the_alignment(worker):
    x = tensor("x", 4096, dtype="fp16", storage=0, offset=2)
    (sample,) = sampled(worker, launch("copy", (4, 1, 1), x, tensor("y", 4096, dtype="fp16", storage=1), n=4096, BLOCK=1024))
    load = access(sample, "load", "copy.load")
    assert load.alignment == 2
    assert load.sector_efficiency == pytest.approx(2 / 3)


def test_a_column_walk_uses_an_eighth_of_each_sector(worker):
    rows, width = 50176, 256
    (sample,) = sampled(worker, launch("columns", (width, 1, 1), tensor("x", rows, width, storage=0), tensor("y", width, storage=1),
                                       rows=rows, width=width, BLOCK=1024))  # fmt: skip
    load = access(sample, "load", "columns.load")
    assert load.sector_efficiency == pytest.approx(1 / 8)
    assert (load.contiguous, load.executions) == (1, 49.0)
    assert load.unique == load.total == rows * width * 4
    (loop,) = sample.loops
    assert (loop.line, loop.trips_min, loop.trips_max, loop.trips_mean) == (line_of("columns.loop"), 49, 49, 49.0)
    assert not loop.data_dependent


def test_a_pointer_bumped_in_a_long_loop_arrives_where_it_should(worker):
    rows, width = 10_000, 512
    (sample,) = sampled(worker, launch("bumped", (4, 1, 1), tensor("x", rows, width, storage=0), tensor("y", width, storage=1),
                                       rows=rows, width=width, BLOCK=128))  # fmt: skip
    load = access(sample, "load", "bumped.load")
    assert load.executions == 10_000
    # The span of what was touched reaches to the last row only if skipped iterations moved the pointer.
    assert load.unique == load.total == rows * width * 4


def test_causal_tiles_that_the_mask_kills(worker):
    length = 4096
    (sample,) = sampled(worker, launch("causal", (64, 1, 1), tensor("q", length, 64, dtype="fp16", storage=0),
                                       tensor("k", length, 64, dtype="fp16", storage=1), tensor("o", length, storage=2),
                                       length=length, D=64, BM=64, BN=64))  # fmt: skip
    where = access(sample, "where", "causal.where")
    assert where.dead == pytest.approx(0.5, abs=0.08)
    assert access(sample, "load", "causal.k").shared == {0: 1.0}
    assert sample.dot_flops == 2 * 64 * length * length
    assert sample.dot_dtype == "fp16"
    assert sample.other_flops > 0


def test_a_row_shared_by_all_programs_of_one_axis(worker):
    (sample,) = sampled(worker, launch("broadcast_row", (512, 4, 1), tensor("x", 512, 4096, storage=0), tensor("w", 4096, storage=1),
                                       tensor("y", 512, 4096, storage=2), width=4096, BLOCK=1024))  # fmt: skip
    weight = access(sample, "load", "broadcast_row.all", "w")
    assert weight.shared == {0: 1.0, 1: 0.0}
    assert (weight.total, weight.unique) == (512 * 4096 * 4, 4096 * 4)
    assert access(sample, "load", "broadcast_row.all", "x").shared == {0: 0.0, 1: 0.0}


def test_a_gather_is_indirect_and_its_index_is_not(worker):
    (sample,) = sampled(worker, launch("gather", (64, 1, 1), tensor("index", 8192, dtype="i64", storage=0),
                                       tensor("table", 50_000, 64, storage=1), tensor("y", 8192, storage=2), D=64, BLOCK=128))  # fmt: skip
    index, rows, single = (access(sample, "load", f"gather.{n}") for n in ("index", "rows", "single"))
    assert (index.indirect, index.itemsize, index.sector_efficiency) == (False, 8, 1.0)
    assert (rows.indirect, rows.scattered, rows.shared, rows.dead) == (True, 1.0, {}, 0.0)
    assert single.indirect
    assert single.scattered == pytest.approx(1 / 8)


def test_a_divided_index_repeats_addresses_within_the_tile(worker):
    (sample,) = sampled(worker, launch("halves", (256, 1, 1), tensor("x", 131072, storage=0), tensor("y", 262144, storage=1), BLOCK=1024))
    load = access(sample, "load", "halves.all")
    assert load.repeat == 2.0
    assert load.unique == pytest.approx(load.total / 2, rel=1e-3)


def test_atomics_of_all_programs_on_the_same_addresses(worker):
    (sample,) = sampled(worker, launch("count", (300, 1, 1), tensor("x", 300 * 256, storage=0), tensor("total", 256, storage=1), BLOCK=256))
    atomic = access(sample, "atomic", "count.atomic")
    assert atomic.shared == {0: 1.0}
    assert (atomic.total, atomic.unique) == (300 * 256 * 4, 256 * 4)


def test_device_functions_and_block_pointers(worker):
    first, second = sampled(
        worker,
        launch("helped", (8, 1, 1), tensor("x", 1024, storage=0), tensor("y", 1024, storage=1), BLOCK=128),
        launch("blocks", (16, 1, 1), tensor("x", 512, 4000, storage=0), tensor("y", 512, storage=1), index=1, rows=512, width=4000,
               BM=32, BN=64),
    )  # fmt: skip
    helped = access(first, "load", "helped.load")
    assert (helped.pointer, helped.total) == ("x", 4096)
    block = access(second, "load", "blocks.load")
    assert (block.executions, block.pointer, block.contiguous) == (63.0, "x", 64)
    assert block.total == pytest.approx(512 * 4000 * 4, rel=0.01)
    assert second.launch == 1


def test_data_dependent_trips_and_endless_loops_are_said(worker):
    (sample,) = sampled(worker, launch("until", (100, 1, 1), tensor("limits", 100, dtype="i32", storage=0),
                                       tensor("y", 100, dtype="i32", storage=1)))  # fmt: skip
    loop = next(found for found in sample.loops if found.line == line_of("until.for"))
    assert loop.data_dependent
    assert loop.trips_max > loop.trips_min
    assert "the while loop at line" in sample.note


def test_a_users_reduction_does_not_run_element_by_element(worker):
    started = time.monotonic()
    (sample,) = sampled(worker, launch("reduced", (4, 1, 1), tensor("x", 4 * 65536, storage=0), tensor("y", 4, storage=1), BLOCK=65536))
    assert sample.note == ""
    assert time.monotonic() - started < 5


def test_a_case_of_terabytes_allocates_nothing(worker):
    n = 1 << 38
    big = launch("copy", (1 << 28, 1, 1), tensor("x", n, storage=0), tensor("y", n, storage=1), BLOCK=1024)
    big = Launch(**{f: getattr(big, f) for f in big.__struct_fields__} | {"arguments": (*big.arguments, _i64("n", n))})
    (sample,) = sampled(worker, big)
    assert sample.programs == 1 << 28
    assert access(sample, "load", "copy.load").executions == 1.0


def _i64(name: str, value: int):
    from leadline.model import Argument

    return Argument(name=name, type="i64", value=value)


def test_the_budget_is_kept_and_said(worker):
    sampled(worker, launch("copy", (4, 1, 1), tensor("x", 4096, storage=0), tensor("y", 4096, storage=1), n=4096, BLOCK=1024))
    heavy = launch("causal", (64, 1, 1), tensor("q", 65536, 256, dtype="fp16", storage=0), tensor("k", 65536, 256, dtype="fp16", storage=1),
                   tensor("o", 65536, storage=2), length=65536, D=256, BM=1024, BN=256)  # fmt: skip
    started = time.monotonic()
    (sample,) = sampled(worker, heavy, budget_s=0.1)
    assert time.monotonic() - started < 2.0
    assert "time budget" in sample.note


def test_what_cannot_run_is_a_note(worker):
    broken, absent, empty = sampled(
        worker,
        launch("broken", (1, 1, 1), tensor("x", 1, storage=0), tensor("y", 1, storage=1)),
        launch("nowhere", (1, 1, 1), index=1),
        launch("copy", (0, 1, 1), index=2),
    )
    assert broken.note == "the interpreter stopped: NameError: name 'missing' is not defined"
    assert absent.note.startswith("cannot sample: ")
    assert (empty.note, empty.programs, empty.sampled) == ("the grid is empty", 0, 0)


def test_text_stands_in_for_the_file(worker):
    text = KERNELS.read_text().replace("at // 2", "at // 4")
    grid = launch("halves", (256, 1, 1), tensor("x", 65536, storage=0), tensor("y", 262144, storage=1), BLOCK=1024)
    (sample,) = sampled(worker, grid, text=text)
    assert next(a.repeat for a in sample.accesses if a.kind == "load") == 4.0


@pytest.mark.parametrize(("trips", "most"), [(0, 8), (1, 8), (8, 8), (9, 8), (1000, 8), (7, 3), (4, 3)])
def test_planned_iterations_stand_for_all(trips, most):
    plan = planned(trips, most)
    assert sum(weight for _, weight in plan) == pytest.approx(trips)
    assert len(plan) <= most
    assert trips == 0 or (plan[0][0], plan[-1][0]) == (0, trips - 1)


def test_an_address_tells_argument_storage_and_offset():
    address = figures.base_address(argument=3, storage=7, offset=48)
    assert figures.argument_of(address) == 3
    assert figures.offset_of(address) == 48
    same = figures.base_address(argument=9, storage=7, offset=48)
    both = figures.shared_part(np.array([address, same], np.uint64))
    assert both[0] == both[1]
    assert figures.argument_of(12345) == -1


def test_coalescing_of_known_patterns():
    lanes = np.arange(64, dtype=np.int64)
    assert figures.coalescing(lanes * 4, None, 4) == (1.0, 64, 16)
    assert figures.coalescing(lanes * 8, None, 4)[:2] == (0.5, 1)
    assert figures.coalescing(lanes * 0, None, 4)[0] == 1.0
    # Half the lanes masked: what is touched is still used whole.
    assert figures.coalescing(lanes * 4, lanes < 32, 4)[0] == 1.0
    tile = lanes[:32, None] * 4 + lanes[None, :32] * 4096
    assert figures.coalescing(tile, None, 4) == (1.0, 32, 16)


def test_programs_without_work_at_the_end_do_not_shorten_the_span(worker):
    rows, width, programs = 8192, 256, 132
    each = -(-rows // programs)  # 63: the last program gets no row
    launched = launch("shares", (programs, 1, 1), tensor("x", rows, width, storage=0), tensor("y", rows, width, storage=1), rows=rows,
                      width=width, BLOCK=width)  # fmt: skip
    scalars = (Argument(name="each", type="constexpr", value=each, constexpr=True), Argument(name="eps", type="fp32", value=0.5))
    (sample,) = sampled(worker, structs.replace(launched, arguments=(*launched.arguments, *scalars)))
    assert sample.note == ""  # `eps.to` needs a tensor, which a float argument is
    for kind in ("load", "store"):
        assert access(sample, kind, f"shares.{kind}").unique == rows * width * 4

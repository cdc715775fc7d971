"""Floors, launch costs and ceilings, from samples written by hand."""

import pytest
from launch_records import launch, tensor

from leadline.collect.ceilings import matmul_rate, predicted
from leadline.collect.floor import launch_cost, limit
from leadline.errors import UsageError
from leadline.model import AccessSample, LaunchSample, Trace

H200 = predicted("cuda:90")
MB = 1 << 20


def row(kind: str, pointer: str, total: float, **more) -> AccessSample:
    return AccessSample(line=1, kind=kind, pointer=pointer, total=total, **{"lanes": 1024, "executions": 1.0, "unique": total, **more})


def copies(programs: int, count: int = 256 * MB, **load):
    n = count // 4
    record = launch("copy", (programs, 1, 1), tensor("x", n, storage=0), tensor("y", n, storage=1), n=n, BLOCK=1024)
    sample = LaunchSample(launch=0, programs=programs, sampled=6, accesses=(row("load", "x", count, **load), row("store", "y", count)))
    return record, sample


def test_a_copy_is_bound_by_memory():
    record, sample = copies(65536)
    found = limit(Trace(case="c", launches=(record,)), (sample,), H200)
    assert (found.bound, found.bytes, found.launches, found.time_us, found.fraction) == ("memory", 512 * MB, 1, None, None)
    assert found.floor_us == pytest.approx(512 * MB / H200.copy_bytes_per_s * 1e6)
    assert found.predicted


def test_reads_are_held_to_the_storage_and_unread_inputs_cost_nothing():
    record, sample = copies(65536)
    twice = LaunchSample(launch=0, programs=1, sampled=1, accesses=(*sample.accesses, row("load", "x", 256 * MB)))
    trace = Trace(case="c", launches=(record,), inputs={"x": record.arguments[0].tensor, "unread": tensor("u", 1 << 30, storage=9).tensor})
    assert limit(trace, (twice,), H200).bytes == 512 * MB


def test_an_intermediate_does_not_count():
    n = 64 * MB
    first = launch("copy", (16384, 1, 1), tensor("x", n, storage=0), tensor("y", n, storage=1))
    second = launch("copy", (16384, 1, 1), tensor("x", n, storage=1), tensor("y", n, storage=2), index=1)
    samples = tuple(LaunchSample(launch=i, programs=1, sampled=1, accesses=(row("load", "x", 4 * n), row("store", "y", 4 * n)))
                    for i in (0, 1))  # fmt: skip
    kept = Trace(case="c", launches=(first, second), outputs=(second.arguments[1].tensor,))
    assert limit(kept, samples, H200).bytes == 2 * 4 * n
    both = Trace(case="c", launches=(first, second), outputs=(first.arguments[1].tensor, second.arguments[1].tensor))
    assert limit(both, samples, H200).bytes == 3 * 4 * n


def test_small_launches_are_bound_by_launching():
    record, sample = copies(1, count=4096)
    found = limit(Trace(case="c", launches=(record,)), (sample,), H200)
    assert (found.bound, found.floor_us) == ("launch", H200.launch_us)


def test_a_product_is_bound_by_compute():
    record, _ = copies(1024)
    sample = LaunchSample(launch=0, programs=1024, sampled=6, dot_flops=1e12, dot_dtype="fp16")
    found = limit(Trace(case="c", launches=(record,)), (sample,), H200)
    assert found.bound == "compute"
    assert found.floor_us == pytest.approx(1e12 / H200.matmul_flops["fp16"] * 1e6)
    assert limit(Trace(case="c", launches=()), (), H200).floor_us == 0


def test_cost_of_a_copy_lies_near_its_floor():
    cost = launch_cost(*copies(65536), H200)
    assert cost.bound == "memory"
    assert 1.0 <= cost.total_us / (512 * MB / H200.copy_bytes_per_s * 1e6) < 1.6


def test_wasted_sectors_cost_l2_and_few_programs_cost_bandwidth():
    plain, wasteful = launch_cost(*copies(65536), H200), launch_cost(*copies(65536, sector_efficiency=0.125), H200)
    assert wasteful.sector_bytes == pytest.approx(plain.sector_bytes * 4.5)
    assert wasteful.l2_us == pytest.approx(plain.l2_us * 4.5)
    few = launch_cost(*copies(4), H200)
    assert few.fill < 0.01
    assert few.total_us > 5 * plain.total_us


def test_a_scatter_pays_for_whole_sectors():
    record, sample = copies(65536)
    scatter = row("store", "y", 256 * MB, indirect=True, scattered=0.125)
    cost = launch_cost(record, LaunchSample(launch=0, programs=65536, sampled=6, accesses=(sample.accesses[0], scatter)), H200)
    assert cost.dram_bytes == (1 + 2 * 8) * 256 * MB


def test_steps_waves_atomics_and_spills():
    record, _ = copies(100, count=4 * MB)
    walk = LaunchSample(launch=0, programs=100, sampled=6, accesses=(row("load", "x", 4 * MB, contiguous=1024),))
    longer = LaunchSample(launch=0, programs=100, sampled=6, accesses=(
        row("load", "x", 4 * MB, executions=500.0, contiguous=1024),))  # fmt: skip
    assert launch_cost(record, longer, H200).steps == 500
    assert launch_cost(record, longer, H200).latency_us > 100 * launch_cost(record, walk, H200).latency_us
    assert launch_cost(record, longer, H200).bound == "latency"
    hot = LaunchSample(launch=0, programs=100, sampled=6, accesses=(row("atomic", "y", 4.0 * MB, unique=4.0),))
    assert launch_cost(record, hot, H200).bound == "atomics"
    wide = launch("copy", (100, 1, 1), *record.arguments[:2], warps=32)
    big = LaunchSample(launch=0, programs=100, sampled=6, accesses=(
        row("load", "x", 4 * MB, lanes=131072),))  # fmt: skip
    assert launch_cost(wide, big, H200).spill_bytes > 0
    assert launch_cost(wide, walk, H200).spill_bytes == 0
    many = launch_cost(*copies(65536), H200)
    assert many.waves > 1
    assert 0 <= many.tail < 1
    assert launch_cost(record, LaunchSample(launch=0, programs=100, sampled=0), H200).total_us > 0


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:90a", "cuda:100", "hip:gfx942"])
def test_every_target_has_ceilings(target):
    found = predicted(target)
    assert found.predicted
    assert found.l2_bytes_per_s > found.copy_bytes_per_s
    assert found.matmul_flops["fp16"] > found.matmul_flops["tf32"] > found.fma_flops


def test_an_unknown_target():
    with pytest.raises(UsageError) as raised:
        predicted("cuda:10")
    assert str(raised.value) == "no ceilings are known for target 'cuda:10'; use one of cuda:90, cuda:80, cuda:100, hip:gfx942"


def test_rates_by_triton_dtype():
    assert matmul_rate(H200, "fp8e4nv") == H200.matmul_flops["fp8"]
    assert matmul_rate(H200, "i8") == H200.matmul_flops["int8"]
    assert matmul_rate(H200, "fp32") == H200.fma_flops
    assert matmul_rate(predicted("cuda:80"), "fp8e5") == predicted("cuda:80").matmul_flops["fp16"]

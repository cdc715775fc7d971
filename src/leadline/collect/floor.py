"""Level 2 without a device: the least time a case could take, and a coarse prediction of what each launch does take."""

import math
from collections.abc import Sequence

from leadline.collect.ceilings import matmul_rate
from leadline.model import AccessSample, Ceilings, Launch, LaunchCost, LaunchSample, Limit, Trace

_DRAM_LATENCY_US = 0.65  # a dependent load that misses L2, with the instructions around it
_NEAR_LATENCY_US = 0.2  # one that finds its sector in L1 or L2
_PROGRAM_US = 0.9  # start of a program, first load, last store
_STREAM_BYTES = 64  # what L2 fetches for a miss: shorter steps along a row hit what the step before fetched
_SM_SHARE = 2.2  # how much more than its even share of bandwidth one SM can draw when the others idle
_DOT_EFFICIENCY, _FMA_EFFICIENCY = 0.75, 0.4
_ATOMIC_LANES_PER_S = 3.5e11  # updates that L2 performs, about two per clock and slice on Hopper
_FEW_WARPS = 8  # per SM; with no more, loads, arithmetic and waiting hardly overlap
_SAME_ADDRESS_PER_S = 1.2e9  # updates of one address: L2 performs them one after another


def limit(trace: Trace, samples: Sequence[LaunchSample], ceilings: Ceilings) -> Limit:
    """The floor of a case: every distinct byte once, every operation at full rate, every launch's cost; whichever is largest.

    Memory that one launch writes and another reads is an intermediate: a fused kernel would not move it, so it does not count, unless
    it is an output. Storages that no sampled access touches count nothing. `time_us` stays None: nothing was measured.
    """
    touched = _touched(trace, samples)
    count = sum(launch.repeats for launch in trace.launches)
    total = sum(touched.values())
    flops = compute = 0.0
    by_index = {launch.index: launch for launch in trace.launches}
    for sample in samples:
        launch = by_index.get(sample.launch)
        repeats = launch.repeats if launch else 1
        flops += (sample.dot_flops + sample.other_flops) * repeats
        if sample.dot_flops:
            compute += repeats * sample.dot_flops / matmul_rate(ceilings, sample.dot_dtype)
        compute += repeats * sample.other_flops / ceilings.fma_flops
    times = {
        "memory": total / ceilings.copy_bytes_per_s * 1e6,
        "compute": compute * 1e6,
        "launch": count * ceilings.launch_us,
    }
    bound = max(times, key=lambda name: times[name])
    return Limit(
        bound=bound, floor_us=times[bound], predicted=ceilings.predicted, bytes=total, flops=flops, launches=count,
        ceiling_bytes_per_s=ceilings.copy_bytes_per_s, ceiling_flops_per_s=flops / compute if compute else ceilings.fma_flops,
    )  # fmt: skip


def _touched(trace: Trace, samples: Sequence[LaunchSample]) -> dict[int, float]:
    """Storage -> bytes that a perfect program moves for it. Read and written in place counts twice."""
    launches = {launch.index: launch for launch in trace.launches}
    reads: dict[int, float] = {}
    writes: dict[int, float] = {}
    made: set[int] = set()  # storages a launch writes before any reads them
    capacity: dict[int, float] = {}
    for sample in sorted(samples, key=lambda s: s.launch):
        launch = launches.get(sample.launch)
        if launch is None:
            continue
        written_here: set[int] = set()
        for access in sample.accesses:
            argument = launch.argument(access.pointer) if access.pointer else None
            if argument is None or argument.tensor is None:
                continue
            storage = argument.tensor.storage
            capacity[storage] = float(argument.tensor.storage_bytes or argument.tensor.numel * argument.tensor.itemsize)
            side = reads if access.kind == "load" else writes
            # Two loads of one tensor may read the same bytes or different halves: the sum, held to what the storage has.
            side[storage] = min(side.get(storage, 0.0) + access.unique, capacity[storage])
            if access.kind != "load" and storage not in reads:
                written_here.add(storage)
        made |= written_here
    outputs = {tensor.storage for tensor in trace.outputs}
    inputs = {tensor.storage for tensor in trace.inputs.values()}
    moved: dict[int, float] = {}
    for storage in {*reads, *writes}:
        bytes_read = reads.get(storage, 0.0) if storage not in made else 0.0
        kept = storage in outputs or storage in inputs or storage not in reads
        moved[storage] = bytes_read + (writes.get(storage, 0.0) if kept else 0.0)
    return moved


def launch_cost(launch: Launch, sample: LaunchSample, ceilings: Ceilings) -> LaunchCost:
    """Predict one launch from its sample. See `LaunchCost` for what the parts mean; good to a factor of about three."""
    memory = [a for a in sample.accesses if a.kind in ("load", "store", "atomic") and a.total > 0]
    warps = launch.option("num_warps", 4)
    resident = _resident(launch, sample, ceilings, warps)
    programs = max(launch.programs, 1)
    slots = ceilings.sms * resident
    waves = -(-programs // slots)
    busy = min(1.0, programs / ceilings.sms)
    dram_bytes = sum(_dram_bytes(launch, a, ceilings) for a in memory)
    sector_bytes = sum(_sector_bytes(a) for a in memory)
    drawn = min(1.0, busy * _SM_SHARE)
    dram = dram_bytes / (ceilings.copy_bytes_per_s * drawn)
    steps, chain = _chain(memory, sample, launch)
    spilled = _spill_bytes(sample, ceilings, warps) * max(1.0, steps if sample.dot_flops else 1.0) * programs
    l2 = (sector_bytes + spilled) / (ceilings.l2_bytes_per_s * drawn)
    elementwise = sample.other_flops / (ceilings.fma_flops / 2 * _FMA_EFFICIENCY)
    matrix = sample.dot_flops / (matmul_rate(ceilings, sample.dot_dtype) * _DOT_EFFICIENCY) if sample.dot_flops else 0.0
    compute = math.hypot(elementwise, matrix) / busy
    latency = max(1.0, programs / slots) * (_PROGRAM_US + chain)
    atomics = sum(_atomic_seconds(launch, a) for a in memory if a.kind == "atomic") * 1e6
    parts = {"memory": dram * 1e6, "l2": l2 * 1e6, "compute": compute * 1e6, "latency": latency, "atomics": atomics}
    bound = max(parts, key=lambda name: parts[name])
    # With many warps the parts overlap, never fully: the root of the sum of squares lies between the largest and the sum.
    alone = min(resident, programs / ceilings.sms) * warps <= _FEW_WARPS
    total = ceilings.launch_us + (sum(parts.values()) if alone else math.hypot(*parts.values()))
    return LaunchCost(
        launch=launch.index, dram_us=parts["memory"], l2_us=parts["l2"], compute_us=parts["compute"], latency_us=latency,
        atomics_us=atomics, launch_us=ceilings.launch_us, total_us=total, dram_bytes=dram_bytes, sector_bytes=sector_bytes,
        spill_bytes=spilled, steps=steps, resident=resident, waves=waves, fill=min(1.0, programs / slots),
        tail=1.0 - programs / (waves * slots),
        bound=bound if parts[bound] > ceilings.launch_us else "launch",
    )  # fmt: skip


def _sector_bytes(access: AccessSample) -> float:
    """Bytes of all sectors requested from L2. Repeats inside a program are taken to hit L1."""
    efficiency = access.scattered if access.indirect else access.sector_efficiency
    return access.total / max(access.repeat, 1.0) / max(efficiency, 1 / 32)


def _dram_bytes(launch: Launch, access: AccessSample, ceilings: Ceilings) -> float:
    requested = _sector_bytes(access)
    argument = launch.argument(access.pointer) if access.pointer else None
    tensor = argument.tensor if argument else None
    if tensor is None:
        return requested
    if access.indirect and access.unique > ceilings.l2_bytes:
        # Far-flung sectors do not wait in L2 for their neighbours; one written in part is fetched first.
        return requested * (2.0 if access.kind != "load" and access.scattered < 1.0 else 1.0)
    extent = float(tensor.storage_bytes or tensor.numel * tensor.itemsize)
    once = min(requested, max(access.unique, min(extent, requested) if access.unique >= access.total * 0.99 else access.unique))
    # Programs that run together share through L2 what neighbours share; the rest is read again once L2 has been swept.
    again = requested - once
    if again > 0 and access.unique > ceilings.l2_bytes:
        fastest = next((axis for axis in range(3) if launch.grid[axis] > 1), 0)
        again *= 1.0 - access.shared.get(fastest, 0.0)
    else:
        again = 0.0
    return once + again


def _resident(launch: Launch, sample: LaunchSample, ceilings: Ceilings, warps: int) -> int:
    """Programs per SM: threads, an estimate of registers from the widest tile, shared memory of pipelined operands."""
    threads = warps * 32
    registers = min(255.0, _registers_wanted(sample, threads))
    most = min(32, ceilings.threads_per_sm // threads, int(ceilings.regs_per_sm // (registers * threads)))
    if sample.dot_flops:
        looped = [a for a in sample.accesses if a.kind == "load" and a.executions > 1.5]
        shared = sum(a.lanes * a.itemsize for a in looped) * max(launch.option("num_stages", 3), 1)
        if shared:
            most = min(most, ceilings.smem_per_sm // int(shared))
    return max(1, most)


def _registers_wanted(sample: LaunchSample, threads: int) -> float:
    """Registers a thread would like: one and a half values live of the widest tile, plus addresses and counters."""
    return 32 + 1.5 * max((a.lanes for a in sample.accesses), default=1) / threads


def _spill_bytes(sample: LaunchSample, ceilings: Ceilings, warps: int) -> float:
    """Bytes one program writes to and reads back from local memory for what its registers do not hold."""
    threads = warps * 32
    return max(0.0, _registers_wanted(sample, threads) - min(255, ceilings.regs_per_sm // threads)) * 4 * threads * 2


def _chain(memory: Sequence[AccessSample], sample: LaunchSample, launch: Launch) -> tuple[float, float]:
    """(dependent steps, microseconds they take one after another) of one program."""
    loads = [a for a in memory if a.kind != "store"]
    if not loads:
        return 0.0, 0.0
    longest = max(loads, key=lambda a: a.executions)
    steps = longest.executions
    if steps <= 1:
        return steps, 0.0
    row = longest.contiguous * longest.itemsize
    near = longest.repeat > 1.5 or (row < _STREAM_BYTES and not longest.indirect and longest.sector_efficiency > 0.2)
    each = _NEAR_LATENCY_US + (_DRAM_LATENCY_US - _NEAR_LATENCY_US) * (min(1.0, row / _STREAM_BYTES) if near else 1.0)
    if sample.dot_flops:
        each /= max(launch.option("num_stages", 3), 1)  # the loads of a matrix loop are issued ahead
    return steps, steps * each


def _atomic_seconds(launch: Launch, access: AccessSample) -> float:
    lanes = access.total / access.itemsize
    together = lanes / _ATOMIC_LANES_PER_S
    distinct = max(access.unique / access.itemsize, 1.0)
    return max(together, lanes / distinct / _SAME_ADDRESS_PER_S)

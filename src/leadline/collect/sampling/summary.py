"""From what single programs did to figures of the whole launch. Plain numpy; knows no Triton."""

from dataclasses import dataclass

import numpy as np
from msgspec import structs

from leadline.collect.sampling.addresses import distinct, offset_of, share_within
from leadline.collect.sampling.recorder import Recorder, Site
from leadline.model import AccessSample, Launch, LaunchSample, LoopSample

Key = tuple[str, int, str, int]


@dataclass(frozen=True)
class Program:
    """One program that ran. Roles: see `launches.chosen`; "control" is the middle program again with other loaded values."""

    place: tuple[int, int, int]
    role: str
    recorder: Recorder
    seconds: float
    failed: bool = False


def figures_of(launch: Launch, programs: list[Program], notes: tuple[str, ...], seconds: float) -> LaunchSample:
    """Averages over the programs, each standing for its share of the grid; `notes` become the sample's note."""
    real = [p for p in programs if p.role != "control"]
    middle = next((p for p in real if p.role == "middle"), None)
    control = next((p for p in programs if p.role == "control"), None)
    # Where data decide how far the middle program gets, its second run may see code that the first one did not.
    keys: dict[Key, None] = {}
    for program in programs:
        keys.update(dict.fromkeys(program.recorder.sites))
    weights = _weights(launch, real)
    accesses = [_access(launch, key, real, weights, middle, control) for key in keys]
    accesses.sort(key=lambda a: (a.file, a.line, a.kind, a.pointer))
    dots: dict[str, float] = {}
    for program, weight in zip(real, weights, strict=True):
        for dtype, flops in program.recorder.dot_flops.items():
            dots[dtype] = dots.get(dtype, 0.0) + weight * flops * launch.programs
    if control and sum(control.recorder.dot_flops.values()) > 0 and not dots:
        dots = {k: v * launch.programs for k, v in control.recorder.dot_flops.items()}
    other = sum(w * p.recorder.other_flops for p, w in zip(real, weights, strict=True)) * launch.programs
    capped = sorted({line for p in programs for line in p.recorder.capped})
    said = [*notes, *(f"the while loop at line {line} was stopped" for line in capped)]
    return LaunchSample(
        launch=launch.index, programs=launch.programs, sampled=len(real), accesses=tuple(accesses),
        loops=_loops(launch, real, weights, control), dot_flops=sum(dots.values()),
        dot_dtype=max(dots, key=lambda d: dots[d]) if dots else "", other_flops=other, seconds=round(seconds, 4),
        note="; ".join(said),
    )  # fmt: skip


def _weights(launch: Launch, programs: list[Program]) -> list[float]:
    """Each program's share of the grid. The first and the last stand for themselves where the middle is known; neighbours count with it."""
    if not programs:
        return []
    ends = min(1.0 / max(launch.programs, 1), 1.0 / len(programs))
    near = [p for p in programs if p.role == "middle" or p.role.startswith("next")]
    spread = [p for p in programs if p.role == "spread"]
    weights = []
    for program in programs:
        if program.role in ("first", "last"):
            weights.append(ends)
        elif program.role == "spread":
            weights.append(1.0)
        else:
            weights.append(1.0 / len(near))
    interior = 1.0 - ends * sum(p.role in ("first", "last") for p in programs)
    groups = (1 if near else 0) + len(spread)
    result = [w if p.role in ("first", "last") else w * interior / groups for p, w in zip(programs, weights, strict=True)]
    total = sum(result) or 1.0
    return [w / total for w in result]


def _access(launch: Launch, key: Key, real: list[Program], weights: list[float], middle: Program | None,
            control: Program | None) -> AccessSample:  # fmt: skip
    file, line, kind, argument = key
    indirect = False
    if middle is not None and control is not None:
        one, two = middle.recorder.sites.get(key), control.recorder.sites.get(key)
        if one is not None and two is not None:
            both = min(len(one.marks), len(two.marks))
            indirect = one.marks[:both] != two.marks[:both]
    pairs = [(p.recorder.sites[key], w) for p, w in zip(real, weights, strict=True) if key in p.recorder.sites]
    if not pairs and control is not None:
        # Seen only with the other values: whether it happens depends on data.
        pairs, indirect = [(control.recorder.sites[key], 1.0)], indirect or kind != "where"
    executions = sum(s.executions * w for s, w in pairs)
    lanes = sum(s.lanes * w for s, w in pairs)
    active = sum(s.active * w for s, w in pairs)
    dead = sum(s.dead * w for s, w in pairs)
    if indirect:
        # The mask was decided by made-up values too: nothing is known to be dead, and a mask that let nothing through counts as open.
        dead, active = 0.0, active or lanes
    common = AccessSample(
        line=line, kind=kind, pointer=launch.arguments[argument].name if 0 <= argument < len(launch.arguments) else "",
        file=file, itemsize=max(s.itemsize for s, _ in pairs), lanes=max(s.width for s, _ in pairs), executions=executions,
        active=active / lanes if lanes else 0.0, dead=dead / executions if executions else 0.0,
        indirect=indirect,
    )  # fmt: skip
    if kind == "where":
        return common
    per_program = active * common.itemsize
    # The span of the sampled programs is that of the launch only where its ends took part: the last may have had no work left.
    outer = [p.recorder.sites.get(key) for p in real if p.role in ("first", "last")]
    ends = launch.programs <= len(real) or all(s is not None and s.high >= 0 for s in outer)
    total = per_program * launch.programs
    changed = {"per_program": per_program, "total": total, "unique": _unique(launch, argument, common, pairs, total, indirect, ends)}
    if indirect and control is not None and key in control.recorder.sites:
        changed["scattered"] = _mean_efficiency([(control.recorder.sites[key], 1.0)])
    if not indirect:
        elements, unique = sum(s.elements * w for s, w in pairs), sum(s.unique * w for s, w in pairs)
        changed |= {
            "sector_efficiency": _mean_efficiency(pairs),
            "contiguous": max(s.contiguous for s, _ in pairs),
            "alignment": min((s.alignment for s, _ in pairs if s.efficiency), default=1),
            "repeat": elements / unique if unique else 1.0,
            "shared": _shared(key, real, middle),
        }
    return structs.replace(common, **changed)


def _mean_efficiency(pairs: list[tuple[Site, float]]) -> float:
    graded = [(value, weight * share) for site, share in pairs for value, weight in site.efficiency]
    mass = sum(weight for _, weight in graded)
    return sum(value * weight for value, weight in graded) / mass if mass else 1.0


def _shared(key: Key, real: list[Program], middle: Program | None) -> dict[int, float]:
    if middle is None or key not in middle.recorder.sites:
        return {}
    own = middle.recorder.sites[key].touched
    shared = {}
    for program in real:
        if program.role.startswith("next"):
            other = program.recorder.sites.get(key)
            shared[int(program.role[4:])] = share_within(own, other.touched) if other is not None else 0.0
    return shared


def _unique(launch: Launch, argument: int, common: AccessSample, pairs: list[tuple[Site, float]], total: float,
            indirect: bool, ends: bool) -> float:  # fmt: skip
    """Distinct bytes over the launch: no more than requested, than the span the sampled programs cover, than the memory there is.

    `ends`: the first and the last program made this access, so that the span is the whole launch's.
    """
    bounds = [total]
    tensor = launch.arguments[argument].tensor if 0 <= argument < len(launch.arguments) else None
    if tensor is not None:
        span = 1 + sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.strides, strict=True)) if tensor.numel else 0
        bounds.append(float(max(span * tensor.itemsize, 0)) if not tensor.storage_bytes else float(tensor.storage_bytes - tensor.offset))
    touched = [s for s, _ in pairs if s.high >= 0]
    if not indirect and touched:
        if ends:
            low, high = min(s.low for s in touched), max(s.high for s in touched)
            bounds.append(float(offset_of(high) - offset_of(low) + common.itemsize))
        bounds.append(sum(s.unique * w for s, w in pairs) * common.itemsize * launch.programs)
        if launch.programs <= len(pairs):
            seen = np.concatenate([s.touched for s in touched])
            overlap = distinct(np.sort(seen)).size / seen.size
            bounds.append(sum(s.unique for s in touched) * common.itemsize * overlap)
    return max(0.0, min(bounds))


def _loops(launch: Launch, real: list[Program], weights: list[float], control: Program | None) -> tuple[LoopSample, ...]:
    keys: dict[tuple[str, int], None] = {}
    for program in [*real, *([control] if control else [])]:
        keys.update(dict.fromkeys(k for k in program.recorder.loops if k[0] == launch.kernel_file))
    middle = next((p for p in real if p.role == "middle"), None)
    samples = []
    for key in sorted(keys, key=lambda k: k[1]):
        entries = [(trips, weight * w) for p, w in zip(real, weights, strict=True) for trips, weight in p.recorder.loops.get(key, [])]
        dependent = False
        if control is not None and middle is not None:
            other = control.recorder.loops.get(key, [])
            dependent = [t for t, _ in other] != [t for t, _ in middle.recorder.loops.get(key, [])] and not (
                control.failed or middle.failed)  # fmt: skip
            entries += [(trips, weight) for trips, weight in other] if dependent else []
        mass = sum(w for _, w in entries)
        trips = [t for t, _ in entries]
        mean = sum(t * w for t, w in entries) / mass if mass else 0.0
        samples.append(LoopSample(line=key[1], trips_min=min(trips), trips_max=max(trips), trips_mean=mean, data_dependent=dependent))
    return tuple(samples)

"""Measured launches brought together with traced ones: a profile counts what ran, a trace what the wrapper may run."""

import statistics
from collections.abc import Iterator, Sequence

import msgspec

from leadline.model import Launch, LaunchTiming, Profile, Trace


def matched(profile: Profile, trace: Trace) -> Profile:
    """The profile with its timings numbered like the launches of the (unsettled) trace.

    A device runs a folded launch as often as it repeats, and of an autotuned one a single variant: every variant gets that time. Where
    kernels or counts disagree, no timing can be told apart and `launches` is empty; the totals of the case stay.
    """
    left = list(profile.launches)
    out: list[LaunchTiming] = []
    for slot in _slots(trace.launches):
        ran, left = left[: slot[0].repeats], left[slot[0].repeats :]
        if len(ran) < slot[0].repeats or any(t.kernel != slot[0].kernel for t in ran):
            return msgspec.structs.replace(profile, launches=())
        out += [_joined(launch.index, ran) for launch in slot]
    return msgspec.structs.replace(profile, launches=() if left else tuple(out))


def _slots(launches: Sequence[Launch]) -> Iterator[list[Launch]]:
    """Launches that stand for one call: a launch alone, or all variants of an autotuned one."""
    slot: list[Launch] = []
    for launch in launches:
        if slot and (launch.variants <= 1 or launch.variant_index == 0):
            yield slot
            slot = []
        slot.append(launch)
    if slot:
        yield slot


def _joined(index: int, ran: Sequence[LaunchTiming]) -> LaunchTiming:
    return LaunchTiming(
        launch=index,
        kernel=ran[0].kernel,
        median_us=statistics.median(t.median_us for t in ran),
        low_us=min(t.low_us for t in ran),
        high_us=max(t.high_us for t in ran),
        runs=sum(t.runs for t in ran),
    )

"""Level 1: which addresses a launch touches. A kernel's own body runs for a few programs of the full-size grid, with no data behind it."""

from leadline.model import KernelCase, Launch, LaunchSample, Record


class SampleRequest(Record, frozen=True):
    """What to sample. `text` stands in for the kernel file's text (a candidate). `budget_s` bounds the whole call, not each launch."""

    case: KernelCase
    launches: tuple[Launch, ...]
    programs: int = 8  # at most, per launch
    budget_s: float = 3.0
    text: str | None = None


def sample(request: SampleRequest) -> tuple[LaunchSample, ...]:
    """One `LaunchSample` per launch, in order; runs in the interpret worker (TRITON_INTERPRET=1).

    Nothing is allocated: pointers are made-up numbers, loads return made-up values, stores do nothing. What cannot be run is said in
    `LaunchSample.note`; nothing is raised for a kernel's sake.
    """
    from leadline.collect.sampling.launches import sample_launches

    return sample_launches(request)


__all__ = ["SampleRequest", "sample"]

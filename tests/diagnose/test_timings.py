import msgspec

from leadline.diagnose.timings import matched
from leadline.model import Launch, LaunchTiming, Profile, Trace


def launch(index: int, kernel: str = "k", **more: int) -> Launch:
    made = Launch(
        index=index, kernel=kernel, kernel_file="k.py", kernel_line=1, kernel_module="", call_file="k.py", call_line=9, grid=(1, 1, 1),
        arguments=(),
    )  # fmt: skip
    return msgspec.structs.replace(made, **more)


def profile(*timed: tuple[str, float]) -> Profile:
    launches = tuple(
        LaunchTiming(launch=i, kernel=name, median_us=us, low_us=us - 1, high_us=us + 1, runs=5) for i, (name, us) in enumerate(timed)
    )
    return Profile(device="d", case="c", launches=launches, total_us=sum(us for _, us in timed))


def trace(*launches: Launch) -> Trace:
    return Trace(case="c", launches=launches)


def test_repeats_are_one_launch_with_the_median_of_its_runs() -> None:
    found = matched(profile(("k", 10.0), ("k", 30.0), ("k", 20.0), ("after", 7.0)), trace(launch(0, repeats=3), launch(1, "after")))
    assert [(t.launch, t.kernel, t.median_us, t.low_us, t.high_us, t.runs) for t in found.launches] == [
        (0, "k", 20.0, 9.0, 31.0, 15),
        (1, "after", 7.0, 6.0, 8.0, 5),
    ]


def test_every_variant_of_an_autotuned_launch_gets_the_time_of_the_one_that_ran() -> None:
    variants = [launch(i, "tuned", variants=2, variant_index=i % 2) for i in range(4)]
    found = matched(profile(("tuned", 10.0), ("tuned", 20.0), ("after", 7.0)), trace(*variants, launch(4, "after")))
    assert [(t.launch, t.median_us) for t in found.launches] == [(0, 10.0), (1, 10.0), (2, 20.0), (3, 20.0), (4, 7.0)]


def test_what_does_not_fit_is_attributed_to_nobody() -> None:
    wanted = trace(launch(0), launch(1, "after"))
    for measured in (profile(("k", 1.0)), profile(("k", 1.0), ("other", 2.0)), profile(("k", 1.0), ("after", 2.0), ("after", 2.0))):
        found = matched(measured, wanted)
        assert found.launches == ()
        assert found.total_us == measured.total_us

"""Simulated clocks: how often the judge's interval accepts what is not faster, and finds what is."""

import numpy as np
import pytest

from leadline.verify import statistics

Pair = tuple[float, float]


def simulate(rng: np.random.Generator, gain: float, blocks: int = 30, noise: float = 0.02) -> tuple[list[Pair], list[Pair]]:
    """ABBA blocks with lognormal noise, a drifting clock and outliers; the candidate is `gain` times as fast."""
    old, new = [], []
    for block in range(blocks):
        drift = 1 + 0.1 * block / blocks
        first = rng.random() < 0.5
        order = (True, False, False, True) if first else (False, True, True, False)
        taken: dict[bool, list[float]] = {True: [], False: []}
        for slot, original in enumerate(order):
            base = 100.0 * (drift + 0.002 * slot) / (1.0 if original else gain)
            value = base * np.exp(rng.normal(0, noise))
            taken[original].append(float(value * (rng.uniform(1.2, 3.0) if rng.random() < 0.03 else 1.0)))
        old.append((taken[True][0], taken[True][1]))
        new.append((taken[False][0], taken[False][1]))
    return old, new


def accepted(rng: np.random.Generator, gain: float, cases: int, seed: int) -> bool:
    samples = {str(i): simulate(rng, gain) for i in range(cases)}
    return statistics.family(samples, seed=seed).low > 1.02


@pytest.mark.parametrize("gain", [1.0, 1.02])
def test_what_is_not_faster_is_accepted_at_most_once_in_a_hundred(gain: float) -> None:
    rng = np.random.default_rng(7)
    assert sum(accepted(rng, gain, 1, i) for i in range(200)) <= 2


def test_five_percent_is_found() -> None:
    rng = np.random.default_rng(8)
    assert sum(accepted(rng, 1.05, 2, i) for i in range(60)) >= 55


def test_interval_covers_the_true_ratio() -> None:
    rng = np.random.default_rng(9)
    intervals = [statistics.speedup(*simulate(rng, 1.3), seed=i) for i in range(100)]
    assert sum(i.low <= 1.3 <= i.high for i in intervals) >= 96
    assert all(i.low <= i.mid <= i.high for i in intervals)


def test_exact_samples_give_an_exact_interval() -> None:
    interval = statistics.speedup([(10.0, 10.0)] * 12, [(5.0, 5.0)] * 12)
    assert (interval.low, interval.mid, interval.high) == pytest.approx((2.0, 2.0, 2.0))


def test_family_is_the_geometric_mean_of_the_cases() -> None:
    samples = {"a": ([(8.0, 8.0)] * 12, [(2.0, 2.0)] * 12), "b": ([(3.0, 3.0)] * 12, [(3.0, 3.0)] * 12)}
    assert statistics.family(samples).mid == pytest.approx(2.0)


def test_noise_of_identical_runs_is_nothing_and_grows_with_spread() -> None:
    rng = np.random.default_rng(3)
    quiet, _ = simulate(rng, 1.0, noise=0.005)
    loud, _ = simulate(rng, 1.0, noise=0.1)
    assert statistics.noise([(5.0, 5.0)] * 12) == pytest.approx(0.0)
    assert statistics.noise(quiet) < 0.01 < statistics.noise(loud)


def test_unequal_or_missing_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="1 blocks of the original against 2 of the candidate"):
        statistics.speedup([(1.0, 1.0)], [(1.0, 1.0)] * 2)
    with pytest.raises(ValueError, match="no case was timed"):
        statistics.family({})

"""Speedups with intervals from paired samples: per case, over a family of cases, and the noise floor of A against A."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from leadline.model import Interval

Pairs = Sequence[tuple[float, float]]

CONFIDENCE = 0.99
_RESAMPLES = 4000


def _log(pairs: Pairs) -> np.ndarray:
    values = np.asarray(pairs, float).reshape(-1, 2)
    return np.log(np.maximum(values, 1e-9))


def block_ratios(original: Pairs, candidate: Pairs) -> np.ndarray:
    """log(original / candidate) of each ABBA block; drift that is linear within a block cancels. Shape (blocks,)."""
    if len(original) != len(candidate) or not len(original):
        raise ValueError(f"{len(original)} blocks of the original against {len(candidate)} of the candidate")
    return _log(original).mean(1) - _log(candidate).mean(1)


def _medians(ratios: np.ndarray, rng: np.random.Generator, resamples: int) -> np.ndarray:
    """Bootstrap distribution of the median, shape (resamples,). A little Gaussian smoothing mends the median's granularity."""
    count = len(ratios)
    draws = ratios[rng.integers(0, count, (resamples, count))]
    spread = 1.4826 * np.median(np.abs(ratios - np.median(ratios)))
    draws = draws + rng.normal(0.0, spread / math.sqrt(count), draws.shape) if spread > 0 else draws
    return np.median(draws, axis=1)


def _interval(logs: np.ndarray, centre: float, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(logs, (tail, 1 - tail))
    return Interval(low=float(np.exp(min(low, centre))), mid=float(np.exp(centre)), high=float(np.exp(max(high, centre))))


def speedup(original: Pairs, candidate: Pairs, *, confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """Median of the paired ratio original / candidate with a percentile-bootstrap interval. Raises ValueError on unequal counts."""
    ratios = block_ratios(original, candidate)
    medians = _medians(ratios, np.random.default_rng(seed), _RESAMPLES)
    return _interval(medians, float(np.median(ratios)), confidence)


def family(samples: Mapping[str, tuple[Pairs, Pairs]], *, confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """Geometric mean over cases of the median ratios, resampling every case's blocks. Raises ValueError when there is no case."""
    if not samples:
        raise ValueError("no case was timed")
    rng = np.random.default_rng(seed)
    total, centre = np.zeros(_RESAMPLES), 0.0
    for original, candidate in samples.values():
        ratios = block_ratios(original, candidate)
        total += _medians(ratios, rng, _RESAMPLES)
        centre += float(np.median(ratios))
    return _interval(total / len(samples), centre / len(samples), confidence)


def noise(original: Pairs, *, confidence: float = CONFIDENCE, seed: int = 0) -> float:
    """How far the original's median ratio against itself may stray from 1, relative: half the A/A interval plus its bias.

    The two runs of the original within a block stand for two programs that are the same; their order was drawn at random.
    """
    logs = _log(original)
    # Within a block the two runs lie symmetrically about the middle, so alternating signs removes the order's own effect.
    signs = np.where(np.arange(len(logs)) % 2 == 0, 1.0, -1.0)
    ratios = (logs[:, 0] - logs[:, 1]) * signs / math.sqrt(2)
    medians = _medians(ratios, np.random.default_rng(seed), _RESAMPLES)
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return float(np.expm1(max(abs(low), abs(high))))

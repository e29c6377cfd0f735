"""Percentiles and intervals, each with its source. numpy arrays in, plain floats out; empty input gives None, not zero.

Percentile: linear interpolation between order statistics (Hyndman & Fan 1996, type 7).
Interval of a percentile: order statistics whose ranks bound the binomial(n, p) count below it (distribution free;
David & Nagaraja, Order Statistics, 7.1), by its normal approximation with continuity, None when n is too small.
Bootstrap: percentile method (Efron & Tibshirani 1993, ch. 13), seeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


def percentile(values: Sequence[float] | Floats, p: float) -> float | None:
    """p in [0, 100]."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.percentile(array, p)) if array.size else None


def percentile_interval(values: Sequence[float] | Floats, p: float) -> Interval | None:
    """95 % interval of the p-th percentile, or None when the sample cannot hold one (too few values on a side)."""
    array = np.sort(np.asarray(values, dtype=np.float64))
    n, q = array.size, p / 100
    if n == 0:
        return None
    spread = Z95 * math.sqrt(n * q * (1 - q))
    low, high = math.floor(n * q - spread), math.ceil(n * q + spread) + 1
    if low < 1 or high > n:
        return None
    return Interval(float(array[low - 1]), float(array[high - 1]))


def mean_interval(values: Sequence[float] | Floats) -> Interval | None:
    """95 % normal interval of the mean; None below 2 values."""
    array = np.asarray(values, dtype=np.float64)
    if array.size < 2:
        return None
    half = Z95 * float(array.std(ddof=1)) / math.sqrt(array.size)
    return Interval(float(array.mean()) - half, float(array.mean()) + half)


def samples_needed(p: float) -> int:
    """Fewest values for which `percentile_interval` can exist."""
    n = 2
    while percentile_interval(np.arange(n, dtype=np.float64), p) is None:
        n = n + max(1, n // 20)
    return n


def bootstrap_difference(
    a: Sequence[Floats],
    b: Sequence[Floats],
    statistic: Callable[[Floats], float],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """95 % interval of statistic(b) - statistic(a). Each element holds the values of one group, which belong together:
    groups are drawn with replacement, and the statistic is taken over all their values (Davison & Hinkley 1997, 3.8)."""
    rng = np.random.default_rng(seed)

    def draw(groups: Sequence[Floats]) -> Floats:
        flat = np.concatenate(groups)
        lengths = np.array([g.size for g in groups])
        starts = np.cumsum(lengths) - lengths
        out = np.empty(resamples)
        for i in range(resamples):
            picked = rng.integers(0, lengths.size, lengths.size)
            taken = lengths[picked]
            within = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
            out[i] = statistic(flat[np.repeat(starts[picked], taken) + within])
        return out

    low, high = np.percentile(draw(b) - draw(a), [2.5, 97.5])
    return Interval(float(low), float(high))


class Histogram:
    """Counts in logarithmic buckets: merges exactly, and a percentile read from it is off by at most `error` relative.

    Buckets are powers of (1 + error)^2 around their geometric middle, so every value lies within a factor (1 + error)
    of its bucket's representative."""

    def __init__(self, error: float = 0.005, floor: float = 1e-6) -> None:
        self.error = error
        self.floor = floor
        self._log = 2 * math.log1p(error)
        self.counts: dict[int, int] = {}

    def add(self, value: float, count: int = 1) -> None:
        index = 0 if value <= self.floor else 1 + math.floor(math.log(value / self.floor) / self._log)
        self.counts[index] = self.counts.get(index, 0) + count

    def merge(self, other: Histogram) -> None:
        if (self.error, self.floor) != (other.error, other.floor):
            raise ValueError("histograms with different buckets cannot be merged")
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count

    def percentile(self, p: float) -> float | None:
        """The nearest-rank percentile's bucket representative."""
        total = sum(self.counts.values())
        if not total:
            return None
        rank, seen = max(1, math.ceil(total * p / 100)), 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= rank:
                return self._middle(index)
        raise AssertionError("ranks end at the total")

    def cumulative(self) -> tuple[list[float], list[float]]:
        """(value, share of values at or about or below it) per bucket."""
        total, seen = sum(self.counts.values()), 0
        values, shares = [], []
        for index in sorted(self.counts):
            seen += self.counts[index]
            values.append(self._middle(index))
            shares.append(seen / total)
        return values, shares

    def _middle(self, index: int) -> float:
        return 0.0 if index == 0 else self.floor * math.exp(self._log * (index - 0.5))

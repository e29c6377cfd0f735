"""Two runs side by side: effect sizes with bootstrap intervals, and "no difference shown" when that is so.

For each figure: A, B, the ratio B / A, and the 95 % bootstrap interval of B - A over requests. A difference is shown when
the interval excludes zero. Requests of one session depend on each other, so sessions are resampled, not requests, when a
run has several turns per session: each session counts as one value, the mean of its turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.statistics import Floats, Interval, bootstrap_difference


@dataclass(frozen=True, slots=True)
class Difference:
    figure: str
    a: float
    b: float
    interval: Interval

    @property
    def shown(self) -> bool:
        return self.interval.low > 0 or self.interval.high < 0

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.a else None

    @property
    def words(self) -> str:
        if not self.shown:
            return "no difference shown"
        ratio = self.ratio
        return "differs" if ratio is None else f"B is {abs(ratio - 1):.1%} {'higher' if ratio > 1 else 'lower'}"


def _percentile(p: float) -> Callable[[Floats], NDArray[np.float64]]:
    return lambda values: np.asarray(np.percentile(values, p, axis=-1))


def _mean(values: Floats) -> NDArray[np.float64]:
    return np.asarray(values.mean(axis=-1))


FIGURES: tuple[tuple[str, str, Callable[[Floats], NDArray[np.float64]]], ...] = (
    ("ttft mean", "ttft", _mean),
    ("ttft p50", "ttft", _percentile(50)),
    ("ttft p99", "ttft", _percentile(99)),
    ("tpot mean", "tpot", _mean),
    ("tpot p50", "tpot", _percentile(50)),
    ("tpot p99", "tpot", _percentile(99)),
    ("e2e mean", "e2e", _mean),
    ("e2e p50", "e2e", _percentile(50)),
    ("e2e p99", "e2e", _percentile(99)),
)


def values(samples: Sequence[dict[str, Any]], name: str) -> Floats:
    """Milliseconds. Turns of a session become their mean when there are several, so that rows are independent."""
    sessions: dict[int, list[float]] = {}
    for s in samples:
        if s[name] is not None and not s["error"]:
            sessions.setdefault(s["session"], []).append(s[name] * 1e3)
    return np.array([np.mean(v) for v in sessions.values()], dtype=np.float64)


def compare(a: dict[str, Any], b: dict[str, Any], *, seed: int = 0) -> list[Difference]:
    out = []
    for figure, name, statistic in FIGURES:
        left, right = values(a["samples"], name), values(b["samples"], name)
        if left.size < 2 or right.size < 2:
            continue
        interval = bootstrap_difference(left, right, statistic, seed=seed)
        out.append(Difference(figure, float(statistic(left[None])[0]), float(statistic(right[None])[0]), interval))
    return out


def objections(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Why the two should not be compared."""
    out = [f"run {name} is INVALID" for name, run in (("A", a), ("B", b)) if not run["verdict"]["valid"]]
    for key in ("scenario", "seed"):
        if a["config"].get(key) != b["config"].get(key):
            out.append(f"{key} differs: {a['config'].get(key)!r} and {b['config'].get(key)!r}")
    for key in ("mode", "rate", "concurrency"):
        if a["load"][key] != b["load"][key]:
            out.append(f"load.{key} differs: {a['load'][key]!r} and {b['load'][key]!r}")
    return out

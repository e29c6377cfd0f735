"""Two runs side by side: effect sizes with bootstrap intervals, and "no difference shown" when that is so.

For each figure: A, B, the ratio B / A, and the 95 % bootstrap interval of B - A over requests. A difference is shown when
the interval excludes zero. Requests of one session depend on each other, so whole sessions are resampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.statistics import Floats, Interval, bootstrap_difference, percentile_interval


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


# name, what of a sample, percentile or None for the mean
FIGURES: tuple[tuple[str, str, int | None], ...] = tuple(
    (f"{name} {what}", name, p)
    for name in ("ttft", "tpot", "e2e")
    for what, p in (("mean", None), ("p50", 50), ("p99", 99))
)


def sessions(samples: Sequence[dict[str, Any]], name: str) -> list[Floats]:
    """Milliseconds of the requests that were answered, one array a session."""
    found: dict[int, list[float]] = {}
    for s in samples:
        if s[name] is not None and not s["error"]:
            found.setdefault(s["session"], []).append(s[name] * 1e3)
    return [np.array(values, dtype=np.float64) for values in found.values()]


def compare(a: dict[str, Any], b: dict[str, Any], *, seed: int = 0) -> list[Difference]:
    """The figures are the reports' own. A percentile that one of the samples cannot hold is left out."""
    out = []
    for figure, name, p in FIGURES:
        left, right = sessions(a["samples"], name), sessions(b["samples"], name)
        if len(left) < 2 or len(right) < 2:
            continue
        one, other = np.concatenate(left), np.concatenate(right)
        if p is not None and (percentile_interval(one, p) is None or percentile_interval(other, p) is None):
            continue

        def statistic(values: Floats, p: int | None = p) -> float:
            return float(values.mean() if p is None else np.percentile(values, p))

        interval = bootstrap_difference(left, right, statistic, seed=seed)
        out.append(Difference(figure, statistic(one), statistic(other), interval))
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

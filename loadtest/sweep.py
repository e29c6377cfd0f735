"""The largest load that meets the objectives: double until it fails, bisect, then confirm with a second, fresh run.

A step passes when its run is VALID and at least `share` of its requests met every objective. A result is only reported
as found when a confirming run with another seed passes too; otherwise the next smaller tried load is confirmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    load: float
    passed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """`load` is None when not even the smallest load passed. `bounded` is false when the largest allowed load passed."""

    load: float | None
    bounded: bool
    steps: tuple[Step, ...]


Try = Callable[[float, int], tuple[bool, str]]
"""(load, seed) -> (passed, one sentence)."""


def search(
    attempt: Try, *, low: float, high: float, precision: float = 0.05, whole: bool = False, seed: int = 0
) -> Found:
    """Between `low` and `high`, to within `precision` (relative). `whole`: loads are integers (concurrency)."""
    if not 0 < low <= high:
        raise ValueError(f"the search needs 0 < low <= high, got {low} and {high}")
    steps: list[Step] = []

    def run(load: float, salt: int = 0) -> bool:
        passed, why = attempt(load, seed + salt)
        steps.append(Step(load, passed, why))
        return passed

    def near(load: float) -> float:
        return float(round(load)) if whole else load

    load = near(low)
    if not run(load):
        return Found(None, True, tuple(steps))
    passing, failing = load, None
    while failing is None and passing < high:
        load = near(min(high, passing * 2))
        if load <= passing:
            break
        if run(load):
            passing = load
        else:
            failing = load
    while failing is not None and failing - passing > max(precision * passing, 1.0 if whole else 0.0):
        middle = near((passing + failing) / 2)
        if middle in (passing, failing):
            break
        if run(middle):
            passing = middle
        else:
            failing = middle
    candidates = sorted({s.load for s in steps if s.passed}, reverse=True)
    for candidate in candidates:
        if run(candidate, salt=1):
            return Found(candidate, failing is not None, tuple(steps))
    return Found(None, True, tuple(steps))

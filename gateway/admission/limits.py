"""Limits per minute as token buckets: full at the start, refilled continuously, with a clock that tests can move."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


class Bucket:
    """Holds up to `per_minute` units. `take` is refused when it would go below zero; `correct` may go below, and then
    everybody waits until it is paid back: an answer that was longer than estimated is not free."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(float(self.per_minute), self._level + (now - self._at) * self.per_minute / 60)
        self._at = now

    @property
    def remaining(self) -> int:
        self._refill()
        return max(0, int(self._level))

    @property
    def full_in_s(self) -> float:
        self._refill()
        return (self.per_minute - self._level) * 60 / self.per_minute

    def take(self, units: float) -> float:
        """0.0 when taken, else the seconds until it could be. More than the bucket holds is taken from a full one,
        since it could otherwise never pass."""
        self._refill()
        needed = min(units, float(self.per_minute))
        if self._level >= needed:
            self._level -= units
            return 0.0
        return (needed - self._level) * 60 / self.per_minute

    def correct(self, units: float) -> None:
        """Takes (or, negative, gives back) without asking."""
        self._refill()
        self._level = min(float(self.per_minute), self._level - units)

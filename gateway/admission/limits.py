"""Limits per minute as token buckets: full at the start, refilled continuously, with a clock that tests can move.

`Rates` is where a tenant's buckets live: in this process (here), in the supervisor of `--workers N`
(gateway/processes/client.py), or in Redis (redis_limits.py). The rate comes with each call, so a reload has nothing to move."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Literal, NamedTuple, Protocol

Kind = Literal["requests", "tokens", "media"]


class Reading(NamedTuple):
    """A bucket after it was asked. `wait_s`: 0.0 when the units were taken, else the seconds until they could be."""

    level: float
    wait_s: float


class Rates(Protocol):
    async def take(self, tenant: str, kind: Kind, per_minute: int, units: float) -> Reading:
        """Takes `units`, or nothing. More than a minute's worth is taken from a full bucket, since it could otherwise
        never pass. Raises ApiError("overloaded") when nobody can tell and the configuration says to refuse then."""

    def correct(self, tenant: str, kind: Kind, per_minute: int, units: float) -> None:
        """Takes (or, negative, gives back) without asking; the level may go below zero, and then everybody waits until it
        is paid back: an answer that was longer than estimated is not free."""


class Bucket:
    """Holds up to `per_minute` units."""

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

    def resize(self, per_minute: int) -> None:
        """A new limit: what was used of the old one stays used."""
        self._refill()
        self._level += per_minute - self.per_minute
        self.per_minute = per_minute

    def take(self, units: float) -> Reading:
        self._refill()
        needed = min(units, float(self.per_minute))
        if self._level >= needed:
            self._level -= units
            return Reading(self._level, 0.0)
        return Reading(self._level, (needed - self._level) * 60 / self.per_minute)

    def correct(self, units: float) -> None:
        self._refill()
        self._level = min(float(self.per_minute), self._level - units)


class LocalRates:
    """Buckets of this process. Never suspends, never raises."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, Kind], Bucket] = {}

    async def take(self, tenant: str, kind: Kind, per_minute: int, units: float) -> Reading:
        return self.take_now(tenant, kind, per_minute, units)

    def take_now(self, tenant: str, kind: Kind, per_minute: int, units: float) -> Reading:
        return self._bucket(tenant, kind, per_minute).take(units)

    def correct(self, tenant: str, kind: Kind, per_minute: int, units: float) -> None:
        self._bucket(tenant, kind, per_minute).correct(units)

    def _bucket(self, tenant: str, kind: Kind, per_minute: int) -> Bucket:
        bucket = self._buckets.get((tenant, kind))
        if bucket is None:
            bucket = self._buckets[tenant, kind] = Bucket(per_minute, self._clock)
        elif bucket.per_minute != per_minute:
            bucket.resize(per_minute)
        return bucket

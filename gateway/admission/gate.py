"""Places, and a bounded, fair queue before them.

Who is next when a place comes free: the highest priority; among those the tenant with the fewest requests running, so that
one tenant's flood cannot starve another's single request; within a tenant first come, first served. A tenant at its own limit
waits without holding up others.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial


class GateFull(Exception):
    """`whose`: "tenant" or "all"; `waiting`: how many wait already."""

    def __init__(self, whose: str, waiting: int) -> None:
        super().__init__(whose)
        self.whose = whose
        self.waiting = waiting


@dataclass(eq=False, slots=True)
class _Waiter:
    tenant: str
    priority: int
    limit: int | None
    turn: int
    granted: asyncio.Future[None]


class Gate:
    def __init__(self, places: int, max_queue: int) -> None:
        self._places = places
        self._max_queue = max_queue
        self._running: Counter[str] = Counter()
        self._total = 0
        self._waiting: OrderedDict[int, _Waiter] = OrderedDict()
        self._turns = itertools.count()

    @property
    def in_flight(self) -> int:
        return self._total

    @property
    def full(self) -> bool:
        """Whoever comes now would wait."""
        return self._total >= self._places or bool(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def running(self, tenant: str) -> int:
        return self._running[tenant]

    async def enter(
        self,
        tenant: str,
        *,
        priority: int = 0,
        limit: int | None = None,
        max_queue: int | None = None,
        on_wait: Callable[[int], None] = lambda waiting: None,
    ) -> Callable[[], None]:
        """Returns once a place is held, with what gives it back. Raises GateFull at once when the queue has no room for
        another."""
        # Whoever may run does not wait behind those who may not, and never before those who may.
        if self._may(tenant, limit) and not any(self._may(w.tenant, w.limit) for w in self._waiting.values()):
            self._hold(tenant)
            return partial(self.leave, tenant)
        mine = sum(w.tenant == tenant for w in self._waiting.values())
        if max_queue is not None and mine >= max_queue:
            raise GateFull("tenant", mine)
        if len(self._waiting) >= self._max_queue:
            raise GateFull("all", len(self._waiting))
        waiter = _Waiter(tenant, priority, limit, next(self._turns), asyncio.get_running_loop().create_future())
        self._waiting[waiter.turn] = waiter
        on_wait(len(self._waiting))
        try:
            await waiter.granted
        except BaseException:
            self._waiting.pop(waiter.turn, None)
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.leave(tenant)  # the place came in the same moment as the cancellation
            raise
        return partial(self.leave, tenant)

    def resize(self, places: int, max_queue: int) -> None:
        """New bounds; who is inside or waits stays."""
        self._places = places
        self._max_queue = max_queue
        self._grant()

    def try_enter(self, tenant: str, limit: int | None = None) -> Callable[[], None] | None:
        """A place at once, with what gives it back, if one is free and nobody waits; else None."""
        if self._waiting or not self._may(tenant, limit):
            return None
        self._hold(tenant)
        return partial(self.leave, tenant)

    def leave(self, tenant: str) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._total -= 1
        self._grant()

    def _may(self, tenant: str, limit: int | None) -> bool:
        return self._total < self._places and (limit is None or self._running[tenant] < limit)

    def _hold(self, tenant: str) -> None:
        self._running[tenant] += 1
        self._total += 1

    def _grant(self) -> None:
        while self._total < self._places:
            eligible = [w for w in self._waiting.values() if self._may(w.tenant, w.limit)]
            if not eligible:
                return
            best = min(eligible, key=lambda w: (-w.priority, self._running[w.tenant], w.turn))
            del self._waiting[best.turn]
            if not best.granted.done():
                self._hold(best.tenant)
                best.granted.set_result(None)

"""What admission asks of whoever hands out places: the gate of this process (gate.py) or of the supervisor
(gateway/processes/places.py), and, over all replicas, Redis (redis_limits.py). Entering returns the function that leaves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Leave = Callable[[], None]


class Places(Protocol):
    """`in_flight` and `waiting`: this process's."""

    @property
    def in_flight(self) -> int: ...
    @property
    def waiting(self) -> int: ...

    async def enter(
        self,
        tenant: str,
        *,
        priority: int = 0,
        limit: int | None = None,
        max_queue: int | None = None,
        on_wait: Callable[[int], None] = ...,
    ) -> Leave:
        """Returns once a place is held. Raises GateFull at once when the queue has no room for another."""

    def try_enter(self, tenant: str, limit: int | None = None) -> Leave | None:
        """A place without waiting. None: none is free, or somebody must be asked."""

    def resize(self, places: int, max_queue: int) -> None:
        """New bounds; who is inside stays."""


class Leases(AbstractAsyncContextManager[Any], Protocol):
    """A tenant's places over all replicas. Entered: running; a lease that is not renewed any more comes back by itself."""

    @property
    def waiting(self) -> int: ...

    async def enter(self, tenant: str, limit: int, max_queue: int, on_wait: Callable[[int], None]) -> Leave:
        """Waits for one of the tenant's `limit` places. Raises GateFull when `max_queue` wait here already."""

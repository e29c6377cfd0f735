"""Places for fetches: in all, per host, per tenant. A place is taken for one hop and given back on every path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.media.settings import FetchSettings


class _KeyedSlots:
    """Semaphores by key that exist only while somebody uses them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def take(self, key: str) -> AsyncIterator[None]:
        slot, users = self._slots.get(key) or (asyncio.Semaphore(self._limit), 0)
        self._slots[key] = (slot, users + 1)
        try:
            async with slot:
                yield
        finally:
            slot, users = self._slots[key]
            if users == 1:
                del self._slots[key]
            else:
                self._slots[key] = (slot, users - 1)

    def __len__(self) -> int:
        return len(self._slots)


class HostSlots:
    def __init__(self, settings: FetchSettings) -> None:
        self._tenants = _KeyedSlots(settings.max_concurrent_per_tenant)
        self._hosts = _KeyedSlots(settings.max_concurrent_per_host)
        self._all = asyncio.Semaphore(settings.max_concurrent)

    @asynccontextmanager
    async def take(self, host: str, tenant: str) -> AsyncIterator[None]:
        """Narrowest first, so that one tenant's or host's crowd waits outside the common room."""
        async with self._tenants.take(tenant), self._hosts.take(host), self._all:
            yield

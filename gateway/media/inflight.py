"""Memory account of encoded bodies: what has arrived and is not decoded yet, over all requests.

A body up to `FREE_BYTES` needs no reservation; a larger one reserves its whole expected size before it reads on, so
two half-read bodies can never wait for each other. Waiting is first come, first served, and holds up only that body:
its socket is not read, TCP tells the sender to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from prometheus_client import Gauge

FREE_BYTES: Final = 256 << 10


class BytesInFlight:
    def __init__(self, limit: int, gauge: Gauge | None = None) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._gauge = gauge

    @property
    def used(self) -> int:
        return self._used

    def lease(self) -> Lease:
        return Lease(self)

    async def take(self, size: int) -> None:
        if not self._waiting and self._fits(size):
            self._add(size)
            return
        turn = asyncio.get_running_loop().create_future()
        entry = (turn, size)
        self._waiting.append(entry)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(size)
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._wake()
            raise

    def give(self, size: int) -> None:
        self._add(-size)
        self._wake()

    def _fits(self, size: int) -> bool:
        # A body larger than the whole account goes alone.
        return self._used + size <= self._limit or self._used == 0

    def _add(self, size: int) -> None:
        self._used += size
        if self._gauge is not None:
            self._gauge.set(self._used)

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, size = self._waiting.popleft()
            if not turn.done():
                self._add(size)
                turn.set_result(None)


class Lease:
    """One body's share; `size` bytes may be held. Release is idempotent."""

    def __init__(self, account: BytesInFlight) -> None:
        self._account = account
        self._reserved = 0
        self.size = FREE_BYTES

    async def grow(self, size: int, expected: int) -> None:
        if size <= self.size:
            return
        wanted = max(size, expected)
        await self._account.take(wanted - self._reserved)
        self._reserved = wanted
        self.size = wanted

    def release(self) -> None:
        reserved, self._reserved = self._reserved, 0
        if reserved:
            self._account.give(reserved)

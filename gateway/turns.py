"""Turns at work that would hold the event loop if it were done in one go: one piece per turn of the loop, whoever brings it,
so that a stream with little to do waits for one piece and not for everybody's."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Comes back when it is the caller's turn, first come, first served; the loop has looked at its sockets by then."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._give)
        await turn

    def _give(self) -> None:
        while self._waiting and self._waiting[0].done():  # left meanwhile
            self._waiting.popleft()
        if self._waiting:
            self._waiting.popleft().set_result(None)
        if self._waiting:
            self._loop.call_soon(self._give)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """The loop's only one: turns are of use when all take them at the same place."""
    if (turns := _turns.get(loop)) is None:
        turns = _turns[loop] = Turns(loop)
    return turns

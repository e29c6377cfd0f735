"""Follows one publisher of KV events and keeps its index true.

Sequence numbers grow by one. A gap is asked for at the replay socket; what cannot be had again makes the index unsure: it is
emptied, and until the engine clears its cache or restarts it knows a part only (`complete` is False). A number that goes back
with a later time is a restarted publisher: everything is asked for from its start.
Who speaks ZeroMQ reconnects by itself; what was missed meanwhile shows as a gap."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

import zmq
import zmq.asyncio

from gateway.routing.kv_events.index import ExactIndex, TooManyBlocks
from gateway.routing.kv_events.messages import (
    END_OF_REPLAY,
    MAX_MESSAGE_BYTES,
    AllBlocksCleared,
    BadEvents,
    Batch,
    decode,
)

log = logging.getLogger("catalejo.kv_events")
REPLAY_SILENCE_S: Final = 5.0
"""A replay that says nothing for so long has ended without its end."""
SILENCE_S: Final = 60.0
"""Requests were sent and no event came for so long: the publisher is not believed any more."""


class Subscriber:
    def __init__(
        self,
        name: str,
        endpoint: str,
        replay: str | None,
        topic: str,
        index: ExactIndex,
        count: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`endpoint`, `replay`: ZeroMQ addresses to connect to. `count(outcome)`: applied, replayed, gap, restart or bad."""
        self.index = index
        self.complete = False
        """The index knows all that the cache holds, not only a part."""
        self._name = name
        self._endpoint = endpoint
        self._replay_endpoint = replay
        self._topic = topic.encode()
        self._count = count
        self._clock = clock
        self._next = 0
        self._ts = float("-inf")
        self._heard = False
        self._waiting_since: float | None = None
        self._told = ""

    @property
    def trusted(self) -> bool:
        """Whether it speaks: it has been heard, and not gone silent since requests were sent."""
        return self._heard and (self._waiting_since is None or self._clock() - self._waiting_since < SILENCE_S)

    def sent(self) -> None:
        """A request went to the engine: an event should follow."""
        if self._waiting_since is None:
            self._waiting_since = self._clock()

    async def run(self) -> None:
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)  # none is dropped here; the engine's own mark bounds what waits
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
            socket.setsockopt(zmq.IPV6, 1)
            socket.subscribe(self._topic)
            socket.connect(self._endpoint)
            await self._replay(context, 0)
            while True:
                frames = await socket.recv_multipart()
                if len(frames) == 3 and len(frames[1]) == 8:
                    await self._take(context, int.from_bytes(frames[1], "big"), frames[2])
                else:
                    self._bad("a message has not three parts")
        finally:
            socket.close()
            context.destroy(linger=0)

    async def _take(self, context: zmq.asyncio.Context, number: int, payload: bytes) -> None:
        try:
            batch = decode(payload)
        except BadEvents as e:
            self._bad(str(e))
            self._next = number + 1
            return
        if number < self._next:
            if batch.ts <= self._ts:
                return  # the replay brought it already
            self._count("restart")
            self._forget()
            self._next, self._ts = 0, float("-inf")
        if number > self._next:
            if self._next:
                self._count("gap")
            if not await self._replay(context, number):
                self._forget()
        if number >= self._next:
            self._apply(number, batch, "applied")

    async def _replay(self, context: zmq.asyncio.Context, until: int) -> bool:
        """Asks for everything from the next number on. True when all before `until` is there now."""
        if self._replay_endpoint is None:
            return False
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.IPV6, 1)
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", self._next.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(REPLAY_SILENCE_S):
                    frames = await socket.recv_multipart()
                number, payload = frames[-2], frames[-1]
                if number == END_OF_REPLAY:
                    self._heard = True
                    return self._next >= until
                if not self._replayed(int.from_bytes(number, "big"), payload):
                    return False
                await asyncio.sleep(0)  # a long replay leaves other tasks their turn
        except (TimeoutError, IndexError):
            return False
        finally:
            socket.close()

    def _replayed(self, number: int, payload: bytes) -> bool:
        if number != self._next:
            if number < self._next:
                return True
            # The buffer begins later than what is missing.
            self._forget()
        try:
            self._apply(number, decode(payload), "replayed")
        except BadEvents as e:
            self._bad(str(e))
            return False
        return True

    def _apply(self, number: int, batch: Batch, outcome: str) -> None:
        if number == 0:
            self.complete = True
        try:
            for event in batch.events:
                self.index.apply(event)
                if isinstance(event, AllBlocksCleared):
                    self.complete = True
        except (TooManyBlocks, ValueError, OverflowError) as e:
            self._bad(str(e))
        else:
            self._count(outcome)
        self._next, self._ts = number + 1, batch.ts
        self._heard, self._waiting_since = True, None

    def _forget(self) -> None:
        self.index.clear()
        self.complete = False

    def _bad(self, reason: str) -> None:
        """What the index holds may be wrong from here on."""
        self._count("bad")
        self._forget()
        if reason != self._told:
            log.warning("KV events of engine %s: %s", self._name, reason[:300])
        self._told = reason

"""Whether a client that has ended its side of the connection is still there.

One that only says that no more requests will come (`shutdown(SHUT_WR)`, `nc -N`) and one that has left send the same: the end
of their bytes. Only written to do they differ, since what reaches a closed socket is answered with a reset. So such a client is
sent, again and again with growing pauses, something that means nothing to it."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

FIRST_LOOK_S: Final = 0.05
LAST_LOOK_S: Final = 5.0
UNASKED_S: Final = 2.0
"""A client that nothing can be sent to is given so long for its answer."""

_ENDED: Final = getattr(select, "POLLRDHUP", 0)  # Linux


def ended(transport: asyncio.Transport) -> bool:
    """Whether the client has ended its side, also while nothing is read from it."""
    return bool(_events(transport) & (_ENDED | select.POLLHUP | select.POLLERR))


def _events(transport: asyncio.Transport) -> int:
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), _ENDED)
    return sum(events for _, events in poll.poll(0))


class HalfClosed:
    """Drops the client, by `transport.abort()`, once it is known to have left."""

    def __init__(self, transport: asyncio.Transport, ask: Callable[[], bool]) -> None:
        """`ask` writes what means nothing; False: there is no such thing now."""
        self._transport = transport
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._pause_s = FIRST_LOOK_S
        self._unasked_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        if self._unasked_s > UNASKED_S or _events(self._transport) & (select.POLLHUP | select.POLLERR):
            self._transport.abort()
            return
        self._unasked_s = 0.0 if self._ask() else self._unasked_s + self._pause_s
        self._timer = self._loop.call_later(self._pause_s, self._look)
        self._pause_s = min(2 * self._pause_s, LAST_LOOK_S)

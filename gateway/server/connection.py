"""The client of one request, as the application sees it beside ASGI (gateway/api/connection.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

from gateway.server.untaken import too_slow, untaken


class ClientConnection:
    """It knows no cycle, whose scope holds it."""

    __slots__ = ("_chunked", "_flow", "_told", "_transport", "_untaken", "gone", "nothing")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, *, chunked: bool) -> None:
        """`chunked`: the body is chunks, as the cycle's `send` writes them; else it ends with the connection."""
        self._transport = transport
        self._flow = flow
        self._chunked = chunked
        self._told: Callable[[], object] | None = None
        self.gone = False
        self.nothing = b""
        self._untaken = 0

    def write(self, data: bytes) -> bool:
        if self.gone or self._transport.is_closing():
            return True
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return not self._flow.write_paused

    async def drain(self) -> None:
        if self._flow.write_paused and not self.gone:
            self._untaken = untaken(self._transport)
            await self._flow.drain()

    def stalled(self, seconds: float) -> bool:
        before, self._untaken = self._untaken, untaken(self._transport)
        return too_slow(before, self._untaken, seconds)

    def abort(self) -> None:
        self._transport.abort()  # the protocol's `connection_lost` tells us, and the cycle

    def watch(self, told: Callable[[], object] | None) -> None:
        self._told = told
        if told is not None:
            self._flow.resume_reading()  # a large last piece of the body has paused it: the client's end would not be seen

    def tell_gone(self) -> None:
        """Of the protocol."""
        self.gone = True
        told, self._told = self._told, None
        if told is not None:
            told()

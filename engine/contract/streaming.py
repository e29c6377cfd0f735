"""A streamed answer as a plain ASGI response: headers at once, keep-alives while the engine is silent, and the client's
leaving noticed when it happens, not at the next token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine import wire
from engine.contract.replies import ReplyQueue


class Dialect(Protocol):
    """How replies look on the wire."""

    media_type: str
    keep_alive: bytes

    def encode(self, reply: wire.Reply) -> bytes: ...


class Ndjson:
    """The contract's own form."""

    media_type = wire.REPLY_CONTENT_TYPE
    keep_alive = b"\n"

    def encode(self, reply: wire.Reply) -> bytes:
        return wire.encode_reply(reply)


class StreamedReply(Response):
    """`finished` is called once, however it ends."""

    def __init__(self, stream: ReplyQueue, dialect: Dialect, keep_alive_s: float, finished: Callable[[], None]) -> None:
        super().__init__(media_type=dialect.media_type, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._stream = stream
        self._dialect = dialect
        self._keep_alive_s = keep_alive_s
        self._finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with leaving(receive, self._stream.leave):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._body(send)
        except OSError:
            pass  # the client left while we wrote
        finally:
            self._finished()

    async def _body(self, send: Send) -> None:
        stream, dialect = self._stream, self._dialect
        over = False
        while not over and not stream.gone:
            replies = await stream.next(self._keep_alive_s)
            over = bool(replies) and isinstance(replies[-1], (wire.Done, wire.Failure))
            data = b"".join(dialect.encode(r) for r in replies) or dialect.keep_alive
            if not stream.gone:
                await send({"type": "http.response.body", "body": data, "more_body": not over})


class leaving(contextlib.AbstractAsyncContextManager[None]):
    """Calls `callback` when the client disconnects. The request's body must have been read."""

    def __init__(self, receive: Receive, callback: Callable[[], None]) -> None:
        self._receive = receive
        self._callback = callback
        self._task: asyncio.Task[None] | None = None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._callback()

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

"""Server-sent events: framing, and the response that watches its client.

Everything a producer yields at once is written at once. While nothing comes, a comment goes out every `keep_alive_s`,
so that proxies do not cut a long prefill. A client that leaves, or takes nothing for `stall_s`, cancels the producer,
whose `finally` frees the engine.
After the 200 a failure is one `data: {"error": ...}` event: never a fake finish, and no [DONE].
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError

log = logging.getLogger("catalejo.sse")
KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


class EventStream(Response):
    """Sends what `produce` yields; `on_close` is awaited on every path. `on_failure` sees the ApiError of a failed
    stream, `on_disconnect` a lost client."""

    media_type = "text/event-stream"

    def __init__(
        self,
        produce: AsyncIterator[bytes],
        *,
        keep_alive_s: float,
        stall_s: float,
        on_close: Callable[[], Awaitable[None]],
        headers: Mapping[str, str] | None = None,
        on_failure: Callable[[ApiError], None] = lambda error: None,
        on_disconnect: Callable[[], None] = lambda: None,
        failure_event: Callable[[ApiError], bytes] = lambda error: event(error.body()),
    ) -> None:
        self.status_code = 200
        self.background = None
        self._produce = produce
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        self._sending = False
        self._on_close = on_close
        self._on_failure = on_failure
        self._on_disconnect = on_disconnect
        self._failure_event = failure_event
        self._last_write = 0.0
        self.body = b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(receive, send)
        finally:
            await self._on_close()  # also when the producer never began

    async def _serve(self, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._last_write = loop.time()
        writer = asyncio.create_task(self._write(send, loop))
        reader = asyncio.create_task(_wait_disconnect(receive))
        try:
            tick = min(self._keep_alive_s, self._stall_s)
            while not writer.done():
                quiet = loop.time() - self._last_write
                pause = max(tick - quiet, tick / 10)
                await asyncio.wait((writer, reader), timeout=pause, return_when=FIRST_COMPLETED)
                if writer.done():
                    break
                quiet = loop.time() - self._last_write
                if reader.done() or (self._sending and quiet >= self._stall_s):
                    self._on_disconnect()
                    return
                if not self._sending and quiet >= self._keep_alive_s:
                    await self._send(send, KEEP_ALIVE, loop)
            writer.result()
        except asyncio.CancelledError:  # the server's grace is over
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            failure = ApiError("shutting_down", "the server is being stopped before the answer was finished; try again")
            self._on_failure(failure)
            await self._send(send, self._failure_event(failure), loop)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _write(self, send: Send, loop: asyncio.AbstractEventLoop) -> None:
        try:
            async for data in self._produce:
                await self._send(send, data, loop)
        except ApiError as e:
            self._on_failure(e)
            await self._send(send, self._failure_event(e), loop)
        except Exception:
            log.exception("a stream failed inside the gateway")
            failure = ApiError("internal_error", "the gateway failed while answering")
            self._on_failure(failure)
            await self._send(send, self._failure_event(failure), loop)
        finally:
            await self._produce.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes, loop: asyncio.AbstractEventLoop) -> None:
        """`send` returns at once unless the client is slower than we are."""
        self._last_write = loop.time()
        self._sending = True
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending = False


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Server-sent events: framing, and the response that watches its client.

A producer writes to a `Client`, synchronously, everything it has at once; the client's slowness reaches it as `ready()`.
While nothing comes, a comment goes out every `keep_alive_s`, so that proxies do not cut a long prefill. A client that
leaves, or takes nothing for `stall_s`, cancels the producer, whose `finally` frees the engine.
After the 200 a failure is one `data: {"error": ...}` event: never a fake finish, and no [DONE].
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.disconnect import disconnected
from gateway.errors import ApiError

log = logging.getLogger("catalejo.sse")
KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


class Connection(Protocol):
    """What the server offers beside ASGI's `send`, which costs a message and a few coroutines each time:
    `scope["extensions"]["catalejo.connection"]`, of gateway/http_protocol.py. For bodies without a length, between
    http.response.start and the last http.response.body."""

    nothing: bytes
    """To be set to what means nothing to the client: the server asks with it, between two pieces, whether it is there."""

    def write(self, data: bytes) -> bool:
        """Sends a piece, or drops it when the client is gone. False: the client is slower than we are."""

    async def drain(self) -> None:
        """Comes back when it has caught up, or is gone."""

    def abort(self) -> None:
        """Drops the client and what it has not taken; `receive` then tells of the disconnect."""


class Client:
    """The connection, and when it was last written to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.nothing = KEEP_ALIVE
        self._now = asyncio.get_running_loop().time
        self.last_write = self._now()
        self.waiting = False
        """Somebody waits for it to take more."""

    def write(self, data: bytes) -> bool:
        """False: await `ready()` before the next piece."""
        self.last_write = self._now()
        return self._connection.write(data)

    async def ready(self) -> None:
        self.waiting = True
        await self._connection.drain()
        self.waiting = False

    def abort(self) -> None:
        self._connection.abort()


Produce = Callable[[Client], Awaitable[None]]


class EventStream(Response):
    """Sends what `produce` writes; `on_close` is awaited on every path. `on_failure` sees the ApiError of a failed
    stream, `on_disconnect` a lost client."""

    media_type = "text/event-stream"

    def __init__(
        self,
        produce: Produce,
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
        self._on_close = on_close
        self._on_failure = on_failure
        self._on_disconnect = on_disconnect
        self._failure_event = failure_event
        self.body = b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._serve(Client(scope["extensions"]["catalejo.connection"]), receive, send)
        finally:
            await self._on_close()  # also when the producer never began

    async def _serve(self, client: Client, receive: Receive, send: Send) -> None:
        now = asyncio.get_running_loop().time
        writer = asyncio.create_task(self._write(client, send))
        reader = asyncio.create_task(disconnected(receive))
        try:
            tick = min(self._keep_alive_s, self._stall_s)
            while not writer.done():
                pause = max(tick - (now() - client.last_write), tick / 10)
                await asyncio.wait((writer, reader), timeout=pause, return_when=FIRST_COMPLETED)
                if writer.done():
                    break
                quiet = now() - client.last_write
                if reader.done() or (client.waiting and quiet >= self._stall_s):
                    self._on_disconnect()
                    if not reader.done():  # a mere return would keep the socket until the client takes the rest
                        writer.cancel()
                        client.abort()
                        await reader
                    return
                if not client.waiting and quiet >= self._keep_alive_s:
                    client.write(KEEP_ALIVE)
            writer.result()
        except asyncio.CancelledError:  # the server's grace is over
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            failure = ApiError("shutting_down", "the server is being stopped before the answer was finished; try again")
            self._on_failure(failure)
            client.write(self._failure_event(failure))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _write(self, client: Client, send: Send) -> None:
        try:
            await self._produce(client)
        except ApiError as e:
            self._on_failure(e)
            client.write(self._failure_event(e))
        except Exception:
            log.exception("a stream failed inside the gateway")
            failure = ApiError("internal_error", "the gateway failed while answering")
            self._on_failure(failure)
            client.write(self._failure_event(failure))
        await client.ready()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

"""Server-sent events: framing, and the response that watches its client.

A producer writes to a `Client`, synchronously, everything it has at once; the client's slowness reaches it as `ready()`.
While nothing comes, a comment goes out every `keep_alive_s`, so that proxies do not cut a long prefill. A client that
leaves, or takes next to nothing for `stall_s`, cancels the producer, whose `finally` frees the engine.
After the 200 a failure is one `data: {"error": ...}` event: never a fake finish, and no [DONE].
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.connection import Connection, connection_of
from gateway.api.disconnect import while_connected
from gateway.errors import ApiError

log = logging.getLogger("catalejo.sse")
KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


class Client:
    """The connection of a stream, and what is done for it while nothing is written: see the module's text."""

    def __init__(self, connection: Connection, keep_alive_s: float, stall_s: float) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._waiting = False
        """The producer waits for it to take more."""
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        self._tick_s = min(keep_alive_s, stall_s)
        self._timer = self._loop.call_later(self._tick_s, self._look)
        connection.nothing = KEEP_ALIVE

    def write(self, data: bytes) -> bool:
        """False: await `ready()` before the next piece."""
        self._last_write = self._loop.time()
        return self._connection.write(data)

    async def ready(self) -> None:
        self._waiting = True
        await self._connection.drain()
        self._waiting = False

    def close(self) -> None:
        """Nothing is done for it any more."""
        self._timer.cancel()

    def _look(self) -> None:
        quiet = self._loop.time() - self._last_write
        if self._waiting and quiet >= self._stall_s:
            if self._connection.stalled(quiet):
                self._connection.abort()
                return
            self._last_write, quiet = self._loop.time(), 0.0
        if not self._waiting and quiet >= self._keep_alive_s:
            self.write(KEEP_ALIVE)
            quiet = 0.0
        self._timer = self._loop.call_later(max(self._tick_s - quiet, self._tick_s / 10), self._look)


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
            await self._serve(connection_of(scope), send)
        finally:
            await self._on_close()  # also when the producer never began

    async def _serve(self, connection: Connection, send: Send) -> None:
        client = Client(connection, self._keep_alive_s, self._stall_s)
        try:
            await while_connected(connection, self._write(client, send))
        except ApiError:  # the client has left: others do not pass `_write`
            self._on_disconnect()
        except asyncio.CancelledError:  # the server's grace is over
            failure = ApiError("shutting_down", "the server is being stopped before the answer was finished; try again")
            self._on_failure(failure)
            client.write(self._failure_event(failure))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise
        finally:
            client.close()

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

"""HTTP/1.1 for the engine's data path: one POST, its head, its body as it arrives. About a fifth of a general client's
cost per request, and what has arrived is handed over at once: to a waiting reader within the very callback that brought it,
without a future, a task switch and a timer for each piece. A burst is the exception: it stays bytes, read piece by piece in
turns that all connections share (gateway/turns.py), since thousands of lines would hold everybody's streams.

A connection is used by one response at a time; read to its end it goes back to the pool, else it is cut, which tells the
engine to abort. No redirects, no cookies, no proxies. Parsing is httptools (llhttp), as in the server.
Not here: what is sent and what an answer means (client.py)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools

from gateway.turns import turns_of

HIGH_WATER_BYTES: Final = 256 << 10
"""Above this much unread answer the socket is not read: a slow client slows its engine stream."""
PIECE_BYTES: Final = 2 << 10
"""The most of an answer, with its framing, that is worked on in one turn of the event loop: some fifty tokens, 2 ms."""
SLICE_BYTES: Final = 256 << 10
MAX_HEAD_BYTES: Final = 256 << 10
CLOCK_S: Final = 0.001
"""What a timer may be early by: the loop's clock counts milliseconds."""
Take = Callable[[bytes], bool]
"""Takes a piece of the body. False: no more for now."""
Deadline = Callable[[], float]
"""Loop time at which waiting ends, whatever comes before; asked when a timer rings, not for each piece."""


def never() -> float:
    return inf


class HttpError(OSError):
    """The connection broke, or what came is no HTTP. `untouched`: not one byte of an answer had come."""

    def __init__(self, message: str, *, untouched: bool = False) -> None:
        super().__init__(message)
        self.untouched = untouched


class ConnectTimeout(TimeoutError):
    """No connection within the time for it."""


class _Connection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self._writable: asyncio.Future[None] | None = None
        self.begin()

    def begin(self) -> None:
        """Ready for a new answer."""
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        """Of the body, out of one piece of the answer."""
        self.unread = bytearray()
        """What came of the answer and the parser has not seen."""
        self._head_size = 0
        self.received = self.head = self.complete = self.keep = self._paused = False
        self.error: HttpError | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._take: Take | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: Deadline = never
        self._rings = inf
        self._heard = self._silence_s = 0.0

    # ------------------------------------------------------------------------------------- transport
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received = True
        if self.complete:  # nobody asked: a broken peer
            self.cut()
            return
        waiter = self._waiter if self._waiter is not None and not self._waiter.done() else None
        if self.unread or len(data) > PIECE_BYTES or (waiter is None and self.head):
            self._keep(data)
            while self.unread and not self.head and self.error is None:
                self.read_on()  # also while the request is being sent: the engine may have decided
            self._wake()
            return
        self._parse(data)
        if waiter is None or self._take is None or not self.chunks or self.complete or self.error is not None:
            self._wake()
        else:
            self._heard = self.loop.time()
            self._hand_over(self._take, waiter)

    def _keep(self, data: bytes) -> None:
        self.unread += data
        if len(self.unread) > HIGH_WATER_BYTES and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Parses the next piece of what is unread."""
        data = self.unread[:PIECE_BYTES]
        del self.unread[:PIECE_BYTES]
        self._parse(data)
        if self.unread and (self.complete or self.error is not None):
            self.keep = False  # more than was asked for: a broken peer
            self.unread.clear()
        few = len(self.unread) <= HIGH_WATER_BYTES // 2
        if self._paused and few and self.transport is not None and not self.closed:
            self._paused = False
            self.transport.resume_reading()
        if self.closed and not self.unread:
            self._end()

    def _parse(self, data: bytes | bytearray) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, HttpError):
            self.keep = False
            if not self.complete:  # what comes after the end nobody asked for
                self._fail(HttpError("the answer is no HTTP"))

    def _hand_over(self, take: Take, waiter: asyncio.Future[bool]) -> None:
        try:
            if not take(self.take()):
                waiter.set_result(False)
        except Exception as e:
            waiter.set_exception(e)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._release_sender()
        if not self.unread:
            self._end()
        self._wake()

    def _end(self) -> None:
        """The connection was closed, and all that came is read."""
        if self.head and not self.complete and not self._framed():
            self.complete = True  # a body that the end of the connection ends
        elif not self.complete:
            self._fail(HttpError("the connection was closed", untouched=not self.received))

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        self._release_sender()

    def _release_sender(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # ---------------------------------------------------------------------------------------- parser
    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD_BYTES:
            raise HttpError("the answer's head is too large")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status, self.head = status, True
            self.keep = self._parser.should_keep_alive()
            self._release_sender()
        else:
            self.headers.clear()

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        if self.head:
            self.complete = True

    # ------------------------------------------------------------------------------------------ user
    async def send(self, head: bytes, buffers: Iterable[bytes | memoryview]) -> None:
        """Stops early when the answer comes before everything was sent: the engine has decided."""
        transport = self.transport
        assert transport is not None
        transport.write(head)
        for buffer in buffers:
            view = memoryview(buffer)
            for start in range(0, view.nbytes, SLICE_BYTES):
                if self._writable is not None:
                    await self._writable
                if self.closed or self.head:
                    self.keep = False
                    return
                transport.write(view[start : start + SLICE_BYTES])
                await asyncio.sleep(0)  # other streams' turn: the socket may take megabytes without a pause

    async def wait(self, silence_s: float, take: Take | None = None, deadline: Deadline = never) -> bool:
        """Until there is something to look at: True. Bytes that arrive meanwhile go to `take` at once, as long as it is a
        piece that was expected; False: it wants no more for now. Raises TimeoutError after `silence_s` without a byte and at
        the deadline, and what `take` raises."""
        self._waiter, self._take = self.loop.create_future(), take
        self._heard, self._silence_s, self._deadline = self.loop.time(), silence_s, deadline
        self._arm()
        try:
            return await self._waiter
        finally:
            if self._waiter.done() and not self._waiter.cancelled():
                self._waiter.exception()  # seen, also by a reader that was cancelled meanwhile
            self._disarm()
            self._waiter, self._take, self._deadline = None, None, never

    def look_again(self) -> None:
        """The deadline has come nearer."""
        if self._timer is not None and self._deadline() < self._rings:
            self._disarm()
            self._arm()

    def _arm(self) -> None:
        """One timer per wait: it looks again when bytes have come since, or the deadline has moved."""
        self._rings = min(self._heard + self._silence_s, self._deadline())
        self._timer = self.loop.call_at(self._rings + CLOCK_S, self._look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self.loop.time() < min(self._heard + self._silence_s, self._deadline()):
            self._arm()
        else:
            self._waiter.set_exception(TimeoutError("the engine fell silent"))

    def take(self) -> bytes:
        data = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        self.chunks.clear()
        return data

    def cut(self) -> None:
        if self.transport is not None and not self.closed:
            self.transport.abort()

    def _framed(self) -> bool:
        return "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()

    def _fail(self, error: HttpError) -> None:
        if self.error is None:
            self.error = error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)


class Answer:
    """A response whose head has come. `close()` cuts the connection unless the body was read to its end."""

    def __init__(self, pool: HttpPool, connection: _Connection, silence_s: float) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers
        self._pool = pool
        self._connection: _Connection | None = connection
        self._silence_s = silence_s

    def look_again(self) -> None:
        """The deadline has come nearer."""
        if self._connection is not None:
            self._connection.look_again()

    async def deliver(self, take: Take, deadline: Deadline = never) -> bool:
        """Gives `take` what arrives, in order: True when the body has ended, False when `take` wants no more for now.
        Raises HttpError, TimeoutError after `silence_s` without a byte or at `deadline()`, which may move, and what `take`
        raises."""
        connection = self._connection
        worked = False
        while connection is not None:
            if connection.chunks or connection.unread:
                if worked or len(connection.unread) > PIECE_BYTES:
                    await turns_of(connection.loop).next()
                worked = True
                if not connection.chunks:
                    connection.read_on()
                if connection.chunks and not take(connection.take()):
                    return False
            elif connection.error is not None:
                raise connection.error
            elif connection.complete:
                self._connection = None
                self._pool.give(connection)
                return True
            elif await connection.wait(self._silence_s, take, deadline):
                worked = False
            else:
                return False
        return True

    def settle(self) -> None:
        """After the caller's last piece: gives the connection back if the body's end has come already."""
        connection = self._connection
        if connection is not None and 0 < len(connection.unread) <= PIECE_BYTES and not connection.chunks:
            connection.read_on()
        if connection is not None and connection.complete and not connection.chunks:
            self._connection = None
            self._pool.give(connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()


class HttpPool:
    """Connections to one origin. No limit on their number; idle ones are dropped after `idle_s`."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        idle_s: float,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        """`tls`: for https, the system's trust when None; `server_name`: the name its certificate must carry, the URL's host
        when None."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self.path = parts.path.rstrip("/")
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._server_name = server_name or self._host
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: list[tuple[float, _Connection]] = []
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    async def post(
        self,
        path: str,
        headers: Mapping[str, str],
        buffers: list[bytes | memoryview],
        size: int,
        *,
        silence_s: float,
        fresh: bool = False,
    ) -> Answer:
        """Raises HttpError (an OSError), OSError for a connection that cannot be made, ConnectTimeout, TimeoutError."""
        lines = [f"POST {self.path}{path} HTTP/1.1", f"host: {self._authority}", f"content-length: {size}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        connection = (None if fresh else self._take()) or await self._connect()
        try:
            if size < SLICE_BYTES:
                assert connection.transport is not None
                connection.transport.write(b"".join([head, *buffers]))
            else:
                await connection.send(head, buffers)
            while not connection.head:
                if connection.error is not None:
                    raise connection.error
                await connection.wait(silence_s)
        except BaseException:
            connection.cut()
            raise
        return Answer(self, connection, silence_s)

    def give(self, connection: _Connection) -> None:
        if self._closed or not connection.keep or connection.closed or connection.error is not None:
            connection.cut()
            return
        self._idle.append((connection.loop.time(), connection))
        if self._reaper is None:
            self._reaper = connection.loop.call_later(self._idle_s, self._reap)

    def close(self) -> None:
        """Drops idle connections now and busy ones when their answers end."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        for _, connection in self._idle:
            connection.cut()
        self._idle.clear()

    def _take(self) -> _Connection | None:
        """The one used last; the others are likelier to have been closed."""
        while self._idle:
            since, connection = self._idle.pop()
            if not connection.closed and connection.loop.time() - since < self._idle_s:
                connection.begin()
                return connection
            connection.cut()
        return None

    def _reap(self) -> None:
        self._reaper = None
        kept: list[tuple[float, _Connection]] = []
        for since, connection in self._idle:  # oldest first
            if not connection.closed and connection.loop.time() - since < self._idle_s:
                kept.append((since, connection))
            else:
                connection.cut()
        self._idle = kept
        if kept:
            since, connection = kept[0]
            self._reaper = connection.loop.call_at(since + self._idle_s, self._reap)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        extra: dict[str, Any] = {"ssl": self._tls, "server_hostname": self._server_name} if self._tls else {}
        try:
            async with asyncio.timeout(self._connect_timeout_s) as limit:
                _, connection = await loop.create_connection(lambda: _Connection(loop), self._host, self._port, **extra)
        except TimeoutError:
            if limit.expired():
                raise ConnectTimeout(f"no connection within {self._connect_timeout_s:g} s") from None
            raise
        return connection

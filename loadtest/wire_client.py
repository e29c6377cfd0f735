"""HTTP/1.1 over raw asyncio: sends a prepared request, stamps every socket read, parses nothing it need not.

Only two things are looked at while a response runs: its head (once) and whether the last bytes end the body, because a
connection can only be used again after that. Everything else waits until the run is over (`reading`).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast
from urllib.parse import urlsplit

_END_OF_CHUNKED: Final = b"\r\n0\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_CLOSE: Final = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
LONGEST_HEAD: Final = 65_536
LONGEST_ANSWER: Final = 256 << 20
"""Bytes kept of one answer; a server that goes on is cut off, or it would eat the client's memory."""


@dataclass(slots=True)
class Exchange:
    """One request's raw facts. Stamps are `time.monotonic_ns`.

    due      when it was planned to be sent;  sent  when its first byte was handed to the kernel
    stamps   one per socket read;  ends  bytes received up to that read
    error    "" or what ended it: connect, reset, eof, timeout, too_long, cancelled (by an interrupted run)
    """

    due: int
    sent: int = 0
    end: int = 0
    reused: bool = False
    stamps: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    raw: bytearray = field(default_factory=bytearray)
    error: str = ""


Finished = Callable[[Exchange], None]


class _Connection(asyncio.Protocol):
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.finished: Finished | None = None
        self._body_at = -1
        self._length = -1
        self._chunked = False
        self._close = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass; both set TCP_NODELAY

    def send(self, request: bytes, exchange: Exchange, finished: Finished) -> None:
        assert self.transport is not None
        self.exchange, self.finished = exchange, finished
        self._body_at = self._length = -1
        self._chunked = self._close = False
        exchange.sent = time.monotonic_ns()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        exchange = self.exchange
        if exchange is None:  # bytes nobody asked for
            self.drop()
            return
        raw = exchange.raw
        raw += data
        exchange.stamps.append(now)
        exchange.ends.append(len(raw))
        if self._body_at < 0 and not self._read_head(raw):
            if len(raw) > LONGEST_HEAD:
                self._finish(now, "too_long")
            return
        if self._chunked:
            if raw.endswith(_END_OF_CHUNKED):
                self._finish(now)
        elif self._length >= 0 and len(raw) - self._body_at >= self._length:
            self._finish(now)
        if len(raw) > LONGEST_ANSWER:
            self._finish(now, "too_long")

    def _read_head(self, raw: bytearray) -> bool:
        at = raw.find(b"\r\n\r\n")
        if at < 0:
            return False
        head = bytes(raw[: at + 2])
        self._body_at = at + 4
        self._chunked = CHUNKED.search(head) is not None
        self._close = _CLOSE.search(head) is not None
        length = _LENGTH.search(head)
        self._length = int(length.group(1)) if length else -1
        return True

    def _finish(self, now: int, error: str = "") -> None:
        exchange, finished = self.exchange, self.finished
        self.exchange = self.finished = None
        if exchange is None or finished is None:
            return
        exchange.end, exchange.error = now, error
        if error or self._close:
            self.drop()
        else:
            self.pool.release(self)
        finished(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.pool.lost(self)
        if self.exchange is not None:
            whole = exc is None and self._body_at >= 0 and not self._chunked and self._length < 0
            self._finish(time.monotonic_ns(), "" if whole else "reset" if exc else "eof")

    def give_up(self, exchange: Exchange, error: str) -> None:
        if self.exchange is exchange:  # else it is over, and this connection may serve another
            self._finish(time.monotonic_ns(), error)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()
            self.transport = None


class Pool:
    """Connections to one server, kept alive and used again. No limit on how many: a limit would hide queueing."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http(s) URL")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        self._headers = "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items())
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    def request(self, path: str, body: bytes | None, method: str = "POST") -> bytes:
        """The whole request as bytes, made before it is due."""
        head = f"{method} {self._path}{path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n{self._headers}"
        if body is None:
            return (head + "\r\n").encode()
        return (head + f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n").encode() + body

    async def open(self, count: int) -> None:
        """Opens idle connections ahead of time."""
        made = await asyncio.gather(*(self._connect() for _ in range(count)))
        self._idle.extend(made)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self), self.host, self.port, ssl=self._ssl)
        self._all.add(connection)
        return connection

    def send(self, request: bytes, exchange: Exchange, finished: Finished) -> Callable[[str], None]:
        """Sends at once on an idle connection, else on a new one; calls `finished` exactly once. Returns a function
        that gives the exchange up with an error."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                exchange.reused = True
                connection.send(request, exchange, finished)
                return partial(connection.give_up, exchange)
        return self._send_on_new(request, exchange, finished)

    def _send_on_new(self, request: bytes, exchange: Exchange, finished: Finished) -> Callable[[str], None]:
        holder: list[_Connection] = []
        given_up = "cancelled"

        async def go() -> None:
            connection = await self._connect()
            holder.append(connection)
            connection.send(request, exchange, finished)

        def ended(task: asyncio.Task[None]) -> None:
            self._connecting.discard(task)
            if task.cancelled():  # perhaps before its first step
                self._fail(exchange, finished, given_up)
            elif task.exception() is not None:  # OSError, ssl.SSLError, a name that does not resolve
                self._fail(exchange, finished, "connect")

        task = asyncio.get_running_loop().create_task(go())
        self._connecting.add(task)
        task.add_done_callback(ended)

        def give_up(error: str) -> None:
            nonlocal given_up
            if holder:
                holder[0].give_up(exchange, error)
            else:
                given_up = error
                task.cancel()

        return give_up

    @staticmethod
    def _fail(exchange: Exchange, finished: Finished, error: str) -> None:
        exchange.end, exchange.error = time.monotonic_ns(), error
        exchange.sent = exchange.sent or exchange.end
        finished(exchange)

    def release(self, connection: _Connection) -> None:
        self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)

    def close(self) -> None:
        for task in self._connecting:
            task.cancel()
        for connection in list(self._all):
            connection.drop()
        self._idle.clear()

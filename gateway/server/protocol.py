"""uvicorn's HTTP protocol with what it lacks: limits on request headers, in time and in size, and OpenAI bodies for
malformed requests, after the answers to those before them on the connection.

A connection that is neither being served nor idle between two requests (uvicorn's own keep-alive timer) has
`header_timeout_s` to bring a whole request head, however its bytes are spread. Bodies: gateway/api/body.py.
A client that takes its answers too slowly (untaken.py) for as long is dropped; of a stream: gateway/api/sse.py.
Clients that have ended their side: half_closed.py; those of HTTP/1.0: until_close.py."""

from __future__ import annotations

import asyncio
import secrets
import sys
from typing import Any, Final

import httptools
import orjson
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import ApiError
from gateway.server.connection import ClientConnection
from gateway.server.half_closed import HalfClosed, ended
from gateway.server.untaken import too_slow, untaken
from gateway.server.until_close import until_close

MAX_HEAD_BYTES: Final = 64 << 10
MAX_HEADERS: Final = 200
LINGER_S: Final = 2.0
"""What still comes after a refusal is dropped for this long: closing at once would reset the connection under the answer."""

LOOK_S: Final = 1.0
"""How often a client whose next requests wait is looked for: nothing is read from it then, its end neither."""


class _Refused(Exception):
    """Ends the parser's work; uvicorn then asks for `send_400_response`, which sends the protocol's `_fault`."""


class _Parser(httptools.HttpRequestParser):
    """Leaves a body alone when its request offers an upgrade; httptools takes it for the other protocol's data."""

    def __init__(self, protocol: GatewayProtocol) -> None:
        super().__init__(protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._protocol.decline_upgrade(bytes(data[offer.args[0] :]))


class GatewayProtocol(HttpToolsProtocol):
    header_timeout_s = 30.0
    """Of the class made by `protocol`."""

    _header_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _look_timer: asyncio.TimerHandle | None = None
    _half_closed: HalfClosed | None = None
    _eof = False
    """Nothing more can come from the client."""
    _unread = 0
    """Of the answers, in bytes, when last looked at; what comes since then makes it worthless, hence `sys.maxsize`."""
    _head_begun = False
    _head_bytes = 0
    """Of the finished lines of a request's head, by the parser's count."""
    _head_waiting = 0
    """Of an unfinished head, or of chunk lines and trailers, from the second read on: the parser tells of a line only when
    it is whole."""
    _expects = b""
    _hosts = 0
    _coding: bytes | None = None
    """The transfer-encoding."""
    _offers_upgrade = False
    _in_body = False
    """Between the head and the end of the request of `cycle`."""
    _running: RequestResponseCycle | None = None
    """The request that is being answered, or was last; `cycle` is the newest, which may wait in `pipeline`."""
    _fault: ApiError | None = None
    _broken = False
    """What comes is no longer read; `_fault` is sent when all requests before it are answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self.parser = _Parser(self)
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        if self._half_closed is not None:
            self._half_closed.stop()
        if self._running is not None and not self._running.response_complete:
            self._tell_disconnect(self._running)  # uvicorn tells only the newest
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        if self._head_begun or self._in_body:
            self._head_waiting += len(data)  # set to 0 by what is no such line
        super().data_received(data)
        if self._head_waiting > MAX_HEAD_BYTES and not self._broken:
            self._fault = self._too_large()
            self.send_400_response("")
        if self._header_timer is None and not self._broken and not self._served and not self.transport.is_closing():
            self._arm()
        if self.pipeline and self._look_timer is None and self._half_closed is None:
            self._look_timer = self.loop.call_later(LOOK_S, self._look_for_client)

    def _look_for_client(self) -> None:
        self._look_timer = None
        if not self.pipeline or self._half_closed is not None or self.transport.is_closing():
            return
        if not ended(self.transport):
            self._look_timer = self.loop.call_later(LOOK_S, self._look_for_client)
        elif self.scheme == "https":
            self.transport.abort()
        else:
            self._half_closed = HalfClosed(self.transport, self._say_nothing)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's says None
        """True: the client has ended its side, and the connection stays for its answers as long as the client is there.
        False: it has left, and the transport closes. TLS as Python has it knows no such half."""
        if not self._served or self._in_body or self.scheme == "https":
            return False
        self._eof = True
        if not self.cycle.response_started:
            self.cycle.keep_alive = False
        if self._half_closed is None:
            self._half_closed = HalfClosed(self.transport, self._say_nothing)
        return True

    def _say_nothing(self) -> bool:
        """For HalfClosed."""
        running = self._running
        if running is None or running.response_complete:
            return True
        if running.response_started:
            connection: ClientConnection = running.scope["extensions"]["catalejo.connection"]  # type: ignore[assignment]
            if connection.nothing:
                connection.write(connection.nothing)
            return bool(connection.nothing)
        if running.scope["http_version"] != "1.1":
            return False
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def on_message_begin(self) -> None:
        self._head_begun = True
        self._head_bytes = self._head_waiting = 0
        self._expects, self._hosts, self._coding = b"", 0, None
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if self._in_body:  # a trailer: no header of the request
            return
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._fault = self._too_large()
            raise _Refused
        if len(name) == 6 and name.lower() == b"expect":
            self._expects = value
        elif len(name) == 4 and name.lower() == b"host":
            self._hosts += 1
        elif len(name) == 17 and name.lower() == b"transfer-encoding":
            self._coding = value if self._coding is None else self._coding + b", " + value

    def _count(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fault = self._too_large()
            raise _Refused

    def on_headers_complete(self) -> None:
        self._head_begun = False
        self._head_waiting = 0
        self._disarm()
        self._fault = self._head_fault()
        if self._fault is not None:
            raise _Refused
        # CONNECT is no offer: without a tunnel there is nothing to answer, and uvicorn refuses its target.
        self._offers_upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offers_upgrade:
            super().on_headers_complete()
            self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._head_waiting = 0
        cycle = self.cycle
        if cycle.body or cycle.response_complete or self._offers_upgrade:
            super().on_body(body)
            return
        # Uvicorn's way, but for the two copies that an empty bytearray costs: into it, and out of it again.
        cycle.body = body  # type: ignore[assignment]
        if len(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if not self._offers_upgrade:
            self._in_body = False
            self._head_waiting = 0
            super().on_message_complete()

    def on_response_complete(self) -> None:
        answered = not self.pipeline
        self._unread = sys.maxsize
        self._watch_unread()
        super().on_response_complete()
        if self._broken and answered and not self.transport.is_closing():
            self._refuse(self._fault or _improper())
        elif self._eof and answered:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_unread()

    def resume_writing(self) -> None:
        self._unread = sys.maxsize  # it took something, and more may be written now
        super().resume_writing()

    def _watch_unread(self) -> None:
        if self._unread_timer is None and self.transport.get_write_buffer_size():
            self._unread_timer = self.loop.call_later(self.header_timeout_s, self._look_at_unread)

    def _look_at_unread(self) -> None:
        """Also while the transport is closing: by itself it would wait for the client without end."""
        self._unread_timer = None
        if not self.transport.get_write_buffer_size():
            return
        left = untaken(self.transport)
        if too_slow(self._unread, left, self.header_timeout_s) and not self._streams:
            self.transport.abort()
        else:
            self._unread = left
            self._unread_timer = self.loop.call_later(self.header_timeout_s, self._look_at_unread)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        chunked = cycle.scope["http_version"] == "1.1"
        connection = ClientConnection(self.transport, self.flow, chunked=chunked)
        if not chunked:
            app = until_close(app, cycle)
        cycle.scope["extensions"] = {"catalejo.connection": connection}  # type: ignore[dict-item]  # uvicorn knows others
        super()._start_asgi_task(cycle, app)

    def _head_fault(self) -> ApiError | None:
        if self._expects and not self.expect_100_continue:
            return ApiError("expectation_failed", "the only expectation that can be met is 'Expect: 100-continue'")
        version = self.parser.get_http_version()
        if self._coding is not None and (version != "1.1" or self._coding.strip().lower() != b"chunked"):
            message = "'Transfer-Encoding' of a request can only be 'chunked', of HTTP/1.1; send the body as it is"
            return ApiError("invalid_request", message)
        if self._hosts > 1 or (not self._hosts and version == "1.1"):
            return ApiError("invalid_request", f"an HTTP/1.1 request has one 'Host' header, this one has {self._hosts}")
        return None

    def _too_large(self) -> ApiError:
        if self._in_body:
            message = f"the chunk extensions or trailers of the request's body are larger than {MAX_HEAD_BYTES} bytes"
            return ApiError("invalid_request", message)
        message = f"the request's headers are more than {MAX_HEADERS}, or larger than {MAX_HEAD_BYTES} bytes"
        return ApiError("request_headers_too_large", message)

    def decline_upgrade(self, rest: bytes) -> None:
        """An upgrade is an offer that a server may leave alone: the request is read again as if it had made none, and `rest`,
        what came after its head, is its body. (curl and Java offer h2c with a first POST.)"""
        connection = b", ".join(v for k, v in self.headers if k == b"connection").split(b",")
        kept = [t.strip() for t in connection if t.strip().lower() not in (b"upgrade", b"http2-settings", b"")]
        headers = [h for h in self.headers if h[0] not in (b"upgrade", b"http2-settings", b"connection")]
        if kept:
            headers.append((b"connection", b", ".join(kept)))
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version), *(b"%b: %b" % h for h in headers)]
        self._offers_upgrade = False
        self.parser = _Parser(self)
        self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        """Sends `_fault`, at once or after the answers to the requests before it; then the connection is closed."""
        if self._broken or self.transport.is_closing():
            return
        self._broken = True
        if self._in_body and not self.cycle.response_started:
            if self.cycle is self._running:
                self._tell_disconnect(self.cycle)
                self._refuse(self._fault or _improper())
            else:
                self.pipeline.popleft()  # it is the newest, and is never started
        elif self._in_body:  # its answer has begun or is sent: nothing may come into it, or is asked for after it
            self.transport.close()
        elif not self._served:
            self._refuse(self._fault or _improper())

    @staticmethod
    def _tell_disconnect(cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.scope["extensions"]["catalejo.connection"].tell_gone()  # type: ignore[attr-defined]
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()

    @property
    def _streams(self) -> bool:
        """Who writes the answer looks after its client."""
        running = self._running
        if running is None or running.response_complete:
            return False
        return bool(running.scope["extensions"]["catalejo.connection"].nothing)  # type: ignore[attr-defined]

    @property
    def _served(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _arm(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._too_late)

    def _disarm(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_late(self) -> None:
        self._header_timer = None
        if self.transport.is_closing() or self._served or self.timeout_keep_alive_task is not None:
            return
        if self._head_begun:
            message = f"the request's headers did not come within {self.header_timeout_s:g} s"
            self._refuse(ApiError("request_timeout", message))
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        body = orjson.dumps(error.body())
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: req_{secrets.token_hex(16)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        self._disarm()
        if self._broken and self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self._header_timer = self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()


def _improper() -> ApiError:
    return ApiError("invalid_request", "the request is not proper HTTP/1.1")


def protocol(header_timeout_s: float) -> type[asyncio.Protocol]:
    """For uvicorn's `http` setting."""
    members: dict[str, Any] = {"header_timeout_s": header_timeout_s}
    return type("Protocol", (GatewayProtocol,), members)

"""uvicorn's HTTP protocol with what it lacks: limits on request headers, in time and in size, and OpenAI bodies for
malformed requests.

A connection that is neither being served nor idle between two requests (uvicorn's own keep-alive timer) has
`header_timeout_s` to bring a whole request head, however its bytes are spread. Bodies: gateway/api/body.py."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import ApiError

MAX_HEAD_BYTES: Final = 64 << 10
MAX_HEADERS: Final = 200


class _HeadTooLarge(Exception):
    """Ends the parser's work; uvicorn then asks for `send_400_response`."""


class _UnknownExpectation(Exception):
    """Likewise."""


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
    _head_begun = False
    _head_bytes = 0
    """Of the finished lines of a request's head, by the parser's count."""
    _head_waiting = 0
    """Of an unfinished head, from its second read on: the parser tells of a line only when it is whole."""
    _expects = b""
    _offers_upgrade = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self.parser = _Parser(self)
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        waiting = self._head_begun
        super().data_received(data)
        if waiting and self._head_begun:
            self._head_waiting += len(data)
            if self._head_waiting > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("")
        if self._header_timer is None and not self._served and not self.transport.is_closing():
            self._arm()

    def on_message_begin(self) -> None:
        self._head_begun = True
        self._head_bytes = self._head_waiting = 0
        self._expects = b""
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise _HeadTooLarge
        if len(name) == 6 and name.lower() == b"expect":
            self._expects = value

    def _count(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        self._head_begun = False
        self._disarm()
        if self._expects and not self.expect_100_continue:
            raise _UnknownExpectation
        # CONNECT is no offer: without a tunnel there is nothing to answer, and uvicorn refuses its target.
        self._offers_upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offers_upgrade:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offers_upgrade:
            super().on_message_complete()

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
        if self._served:  # a pipelined request after one that is being answered: nothing may come into that answer
            self.transport.close()
        elif max(self._head_bytes, self._head_waiting) > MAX_HEAD_BYTES or len(self.headers or ()) > MAX_HEADERS:
            message = f"the request's headers are more than {MAX_HEADERS}, or larger than {MAX_HEAD_BYTES} bytes"
            self._refuse(ApiError("request_headers_too_large", message))
        elif self._expects and not self.expect_100_continue:
            message = "the only expectation that can be met is 'Expect: 100-continue'"
            self._refuse(ApiError("expectation_failed", message))
        else:
            self._refuse(ApiError("invalid_request", "the request is not proper HTTP/1.1"))

    @property
    def _served(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

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
        self.transport.close()


def protocol(header_timeout_s: float) -> type[asyncio.Protocol]:
    """For uvicorn's `http` setting."""
    members: dict[str, Any] = {"header_timeout_s": header_timeout_s}
    return type("Protocol", (GatewayProtocol,), members)

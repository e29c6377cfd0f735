"""uvicorn's HTTP protocol with what it lacks: limits on request headers, in time and in size, and OpenAI bodies for
malformed requests.

A connection that is neither being served nor idle between two requests (uvicorn's own keep-alive timer) has
`header_timeout_s` to bring a whole request head, however its bytes are spread. Bodies: gateway/api/body.py."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import ApiError

MAX_HEAD_BYTES: Final = 64 << 10
MAX_HEADERS: Final = 200


class _HeadTooLarge(Exception):
    """Ends the parser's work; uvicorn then asks for `send_400_response`."""


class GatewayProtocol(HttpToolsProtocol):
    header_timeout_s = 30.0
    """Of the class made by `protocol`."""

    _header_timer: asyncio.TimerHandle | None = None
    _head_begun = False
    _head_bytes = 0
    """Of the finished lines of a request's head, by the parser's count."""
    _head_waiting = 0
    """Of an unfinished head, from its second read on: the parser tells of a line only when it is whole."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
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
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise _HeadTooLarge

    def _count(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        self._head_begun = False
        self._disarm()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self._served:  # a pipelined request after one that is being answered: nothing may come into that answer
            self.transport.close()
        elif max(self._head_bytes, self._head_waiting) > MAX_HEAD_BYTES or len(self.headers or ()) > MAX_HEADERS:
            message = f"the request's headers are more than {MAX_HEADERS}, or larger than {MAX_HEAD_BYTES} bytes"
            self._refuse(ApiError("request_headers_too_large", message))
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

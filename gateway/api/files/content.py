"""A stored file as an answer, read piece by piece as its client takes it: many slow clients of large files cost little memory.
One that is too slow: gateway/server/protocol.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.connection import connection_of
from gateway.api.disconnect import while_connected
from gateway.errors import ApiError

PIECE_BYTES: Final = 512 << 10
ReadPart = Callable[[int, int], Awaitable[bytes]]
"""Bytes from the first place to before the second. Raises OSError."""


class FileContent(Response):
    media_type = "application/octet-stream"

    def __init__(self, size: int, read: ReadPart, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._size = size
        self._read = read
        self.init_headers({**headers, "content-length": str(size)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await while_connected(connection, self._send(send))
        except (ApiError, OSError):  # the client has left, or the rest cannot be had: the answer must not look whole
            connection.abort()

    async def _send(self, send: Send) -> None:
        at = 0
        while at < self._size:
            piece = await self._read(at, min(at + PIECE_BYTES, self._size))
            if not piece:
                raise OSError("the stored file is shorter than it was")
            at += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

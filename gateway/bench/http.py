"""The least HTTP/1.1 that a benchmark needs: raw protocols whose own cost is small and the same for every contestant."""

from __future__ import annotations

import asyncio
import re
from typing import Final, cast

HEAD_END: Final = b"\r\n\r\n"
KEPT_BYTES: Final = 64 << 10
LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


class RequestProtocol(asyncio.Protocol):
    """Calls `on_request(path, body)` for each whole request of a connection, `on_lost()` at its end. Of a body only the first
    KEPT_BYTES are kept: copying megabytes would delay the streams that others are timed by."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._data = bytearray()
        self._need = -1
        """Bytes of the body that have not been seen yet; -1: in front of a head."""
        self._kept = b""
        self._path = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            if self._need < 0:
                end = self._data.find(HEAD_END)
                if end < 0:
                    return
                head = bytes(self._data[: end + 2])
                found = LENGTH.search(head)
                self._need = int(found[1]) if found else 0
                self._path = head.split(b" ", 2)[1].decode("latin-1")
                del self._data[: end + 4]
            room = KEPT_BYTES - len(self._kept)
            part = min(len(self._data), self._need)
            self._kept += self._data[: min(part, room)]
            del self._data[:part]
            self._need -= part
            if self._need:
                return
            body, self._kept, self._need = self._kept, b"", -1
            self.on_request(self._path, body)

    def on_request(self, path: str, body: bytes) -> None:
        raise NotImplementedError

    def on_lost(self) -> None:
        return


async def get(port: int, path: str) -> bytes:
    """The body of a 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(HEAD_END)
    writer.close()
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{path} was refused: {head[:200]!r}")
    return body


def response(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"

"""Messages between the supervisor and its gateway processes on a Unix socket: u32 length, then one msgpack array."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

_LENGTH: Final = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

Message = list[Any]


def pack(message: Message) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames(asyncio.Protocol):
    """One end of a connection. Both ends are ours, so a message that cannot be read is a defect and raises."""

    def __init__(self, heard: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        while size - at >= 4:
            end = at + 4 + _LENGTH.unpack_from(data, at)[0]
            if end > size:
                break
            self._heard(_decode(memoryview(data)[at + 4 : end]))
            at = end
        self._rest = data[at:]

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent(self) -> int:
        """Bytes the other end has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, packed: bytes) -> None:
        """Does nothing when the connection is gone."""
        if self._transport is not None:
            self._transport.write(packed)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

"""The floor: a raw relay that copies bytes both ways and looks at nothing. What a gateway costs above it is its work."""

from __future__ import annotations

import argparse
import asyncio
from typing import cast

import uvloop


class Side(asyncio.Protocol):
    other: Side | None = None
    transport: asyncio.Transport | None = None

    def __init__(self) -> None:
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self._early.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def join(self, other: Side) -> None:
        self.other, other.other = other, self
        assert other.transport is not None
        for data in self._early:
            other.transport.write(data)
        self._early.clear()


class Front(Side):
    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        _, back = await asyncio.get_running_loop().create_connection(Side, "127.0.0.1", self._port)
        self.join(back)


async def serve(port: int, target: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Front(target), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--target", type=int, required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.target))

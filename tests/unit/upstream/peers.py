"""Scripted engines on a socket, and what reads their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.upstream.http import Answer, HttpPool

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(handle: Peer, idle_s: float = 30) -> AsyncIterator[tuple[HttpPool, list[int]]]:
    """(a pool for it, one entry per connection)."""
    connections: list[int] = []

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(counted, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = HttpPool(f"http://127.0.0.1:{port}/base/", connect_timeout_s=5, idle_s=idle_s)
    try:
        yield pool, connections
    finally:
        pool.close()
        server.close()
        await asyncio.sleep(0.01)


async def ask(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def read(answer: Answer) -> bytes:
    pieces: list[bytes] = []

    def take(piece: bytes) -> bool:
        pieces.append(piece)
        return True

    assert await answer.deliver(take)
    return b"".join(pieces)

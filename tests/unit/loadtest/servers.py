"""Servers in a thread: the one that knows the truth, and one that answers each request with given bytes."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from loadtest.truth_server import Timetable, serve


@contextmanager
def _running(start: Callable[[], Awaitable[asyncio.Server]]) -> Iterator[str]:
    """Yields its URL. The loop lives and ends in its own thread."""
    started: queue.Queue[tuple[int, Callable[[], Any]]] = queue.Queue()

    async def live() -> None:
        made, stop = await start(), asyncio.Event()
        loop = asyncio.get_running_loop()
        started.put((made.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(stop.set)))
        await stop.wait()
        made.close()

    thread = threading.Thread(target=asyncio.run, args=(live(),), daemon=True)
    thread.start()
    port, stop = started.get(timeout=30)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        stop()
        thread.join(30)


def truth(table: Timetable) -> Any:
    return _running(lambda: serve(0, table))


def answering(answer: bytes, *, endless: bytes = b"") -> Any:
    """Each request gets `answer`; then `endless` again and again, until the client leaves."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                writer.write(answer)
                while endless:
                    writer.write(endless)
                    await writer.drain()
                    await asyncio.sleep(0.01)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    return _running(lambda: asyncio.start_server(handle, "127.0.0.1", 0))


def stream(*events: bytes, end: bytes = b"\n\n") -> bytes:
    """A whole 200 answer whose events are `events`."""
    body = b"".join(b"data: " + event + end for event in events)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + f"{len(body):x}\r\n".encode()
        + body
        + b"\r\n0\r\n\r\n"
    )

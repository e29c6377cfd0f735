"""The load side: raw clients that count events and note when they came."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, cast

import orjson

from gateway.bench.http import HEAD_END

EVENT: Final = b'"content":"'
EMPTY: Final = b'"content":""'
"""The role chunk that peers send before the first token."""
CHAT: Final = "/v1/chat/completions"


def request(port: int, body: dict[str, Any], path: str = CHAT) -> bytes:
    data = orjson.dumps(body)
    return head_of(port, path, len(data)) + data


def head_of(port: int, path: str, size: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % size


def chat_body(tokens: int, *, stream: bool, content: Any = "Say something.") -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {
        "model": "tiny", "messages": messages, "stream": stream, "max_tokens": tokens,
        "thinking": {"type": "disabled"},
    }  # fmt: skip


@dataclass
class Counter:
    events: int = 0
    finished: int = 0
    longest_gap_s: float = 0.0
    first_s: list[float] = field(default_factory=list)


class StreamClient(asyncio.Protocol):
    """One streaming request; counts events by their marker."""

    def __init__(self, data: bytes, counter: Counter) -> None:
        self._data = data
        self._counter = counter
        self._sent = self._last = 0.0
        self.done = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._sent = perf_counter()
        self.transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        count = data.count(EVENT) - data.count(EMPTY)
        if count:
            now = perf_counter()
            if not self._last:
                self._counter.first_s.append(now - self._sent)
            else:
                self._counter.longest_gap_s = max(self._counter.longest_gap_s, now - self._last)
            self._last = now
            self._counter.events += count
        if b"[DONE]" in data:
            self._counter.finished += 1
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()

    def close(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        if self.transport is not None:
            self.transport.close()


async def open_stream(port: int, body: dict[str, Any], counter: Counter) -> StreamClient:
    loop = asyncio.get_running_loop()
    data = request(port, body)
    _, client = await loop.create_connection(lambda: StreamClient(data, counter), "127.0.0.1", port)
    return client


async def unary(port: int, count: int, connections: int) -> list[float]:
    """Latencies of `count` small requests over kept-alive connections."""
    data = request(port, chat_body(1, stream=False))
    out: list[float] = []

    async def one(times: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(times):
            began = perf_counter()
            writer.write(data)
            head = await reader.readuntil(HEAD_END)
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a small request was refused: {head[:200]!r}")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            out.append(perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one(count // connections) for _ in range(connections)))
    return out

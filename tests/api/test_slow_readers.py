"""A client that reads slowly gets everything, in order, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import socket

import orjson

from gateway.prompt import Checkpoint
from tests.api.harness import CHAT, TINY, Stack, body_of

PIECES, TOKENS = 60, 400
"""As events about 4 MB: more than the buffers on the way hold."""


async def begin(stack: Stack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", stack.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    fields = {"stream": True, "thinking": {"type": "disabled"}, "max_tokens": 100_000}
    body = orjson.dumps(body_of("Hi", fields | {"stream_options": {"include_usage": True}}))
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return reader, writer


def body_in(raw: bytes) -> bytes:
    """The chunks of a whole answer, put together."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"transfer-encoding: chunked" in head.lower()
    out: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        if not length:
            assert rest == b"\r\n"
            return b"".join(out)
        out.append(rest[:length])
        rest = rest[length + 2 :]


async def test_a_slow_reader_gets_everything_and_holds_up_nobody() -> None:
    pieces = [[97 + (i + j) % 26 for j in range(TOKENS)] for i in range(PIECES)]
    async with Stack([{"pieces": pieces, "finish": "stop"}, {"pieces": ["quick"], "finish": "stop"}]) as stack:
        async with asyncio.timeout(60):
            reader, writer = await begin(stack)
            received = await reader.readuntil(b"\r\n\r\n")
            assert (await stack.stream("Hi", thinking="disabled")).text() == "quick"
            while data := await reader.read(50_000):
                received += data
                if len(received) < 400_000:
                    await asyncio.sleep(0.01)
        writer.close()
        events = body_in(received).decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        chunks = [orjson.loads(e.removeprefix("data: ")) for e in events[:-2] if not e.startswith(":")]
        text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
        assert text == Checkpoint.load(TINY).decode(i for piece in pieces for i in piece)
        assert chunks[-1]["usage"]["completion_tokens"] == PIECES * TOKENS
        await stack.settled()

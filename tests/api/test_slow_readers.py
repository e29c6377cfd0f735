"""A client that reads slowly gets everything, in order, and nobody else waits for it; one that reads nothing is dropped."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import orjson
import pytest

from gateway.prompt import Checkpoint
from tests.api.harness import CHAT, TINY, Stack, body_of

PIECES, TOKENS = 60, 400
"""As events about 4 MB: more than the buffers on the way hold."""


LONG: dict[str, Any] = {"pieces": [[97 + (i + j) % 26 for j in range(TOKENS)] for i in range(PIECES)], "finish": "stop"}
WIDE: dict[str, Any] = LONG | {"pieces": LONG["pieces"][:15]}
"""With PLAIN about 8 MB."""
NO_THINKING = {"thinking": {"type": "disabled"}, "max_tokens": 100_000}
STREAM = NO_THINKING | {"stream": True, "stream_options": {"include_usage": True}}
PLAIN = NO_THINKING | {"logprobs": True, "top_logprobs": 20}
"""Without logprobs the text is too small for an answer that fills the buffers."""
SMALL = {"max_tokens": 1}


def request(fields: dict[str, Any], *, close: bool = True) -> bytes:
    body = orjson.dumps(body_of("Hi", fields))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" + "connection: close\r\n" * close
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def connect(stack: Stack, buffer_bytes: int = 4096) -> socket.socket:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", stack.port))
    return raw


async def begin(stack: Stack, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(sock=await connect(stack), limit=4096)
    writer.write(data)
    return reader, writer


async def dropped(stack: Stack, own: socket.socket) -> None:
    """Waits until the server holds no socket for it."""
    assert stack._server is not None
    port = own.getsockname()[1]
    async with asyncio.timeout(30):
        while any(c.client[1] == port for c in stack._server.server_state.connections):  # type: ignore[union-attr, index]
            await asyncio.sleep(0.02)


async def rest(own: socket.socket) -> bytes:
    """What the kernel still held."""
    out = b""
    async with asyncio.timeout(30):
        while data := await asyncio.get_running_loop().sock_recv(own, 1 << 20):
            out += data
    return out


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
    async with Stack([LONG, {"pieces": ["quick"], "finish": "stop"}]) as stack:
        async with asyncio.timeout(60):
            reader, writer = await begin(stack, request(STREAM))
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
        assert text == Checkpoint.load(TINY).decode(i for piece in LONG["pieces"] for i in piece)
        assert chunks[-1]["usage"]["completion_tokens"] == PIECES * TOKENS
        await stack.settled()


async def test_a_stream_that_nobody_reads_is_dropped_with_what_it_has_not_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with Stack([LONG], api={"client_stall_s": 0.3}) as stack:
        own = await connect(stack)
        await asyncio.get_running_loop().sock_sendall(own, request(STREAM, close=False))
        async with asyncio.timeout(30):
            while not await stack.metric("catalejo_client_disconnects_total"):
                await asyncio.sleep(0.02)
        await dropped(stack, own)
        await stack.settled()
        got = await rest(own)
        own.close()
    assert got.startswith(b"HTTP/1.1 200") and b"[DONE]" not in got and not got.endswith(b"0\r\n\r\n")
    assert [r.getMessage() for r in caplog.records if r.name.startswith("uvicorn")] == []


@pytest.mark.parametrize(
    "data",
    [request(PLAIN), request(PLAIN, close=False), request(PLAIN, close=False) + request(SMALL)],
    ids=["close", "keep-alive", "pipelined"],
)
async def test_a_plain_answer_that_nobody_reads_is_dropped(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Stack([WIDE, {"pieces": ["a"]}], server_header_timeout_s=0.3) as stack:
        own = await connect(stack)
        await asyncio.get_running_loop().sock_sendall(own, data)
        async with asyncio.timeout(30):
            while not stack.engine.requests():
                await asyncio.sleep(0.02)
        await dropped(stack, own)
        await stack.settled()
        await stack.alone()
        head, _, body = (await rest(own)).partition(b"\r\n\r\n")
        own.close()
    assert head.startswith(b"HTTP/1.1 200")
    assert len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert [r.getMessage() for r in caplog.records if r.name.startswith("uvicorn")] == []


async def test_slow_readers_of_a_plain_answer_and_of_a_stream_after_it_are_not_dropped() -> None:
    """The limit is on taking nothing, not on the whole answer; and a stream has its own."""
    async with Stack([WIDE, LONG], server_header_timeout_s=0.5) as stack, asyncio.timeout(120):
        reader, writer = await begin(stack, request(PLAIN, close=False) + request(STREAM))
        head = await reader.readuntil(b"\r\n\r\n")
        left = length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while left:
            left -= len(await reader.read(min(left, length // 40)))
            await asyncio.sleep(0.002)
        await asyncio.sleep(2)
        received = b""
        while data := await reader.read(1 << 20):
            received += data
        writer.close()
        assert body_in(received).endswith(b"data: [DONE]\n\n")
        await stack.settled()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_reads_steadily_is_not_dropped_while_the_kernels_buffer_is_full(streamed: bool) -> None:
    """The kernel takes nothing more from us before a third of its megabytes has gone."""
    settings = {"server_header_timeout_s": 0.5, "api": {"client_stall_s": 0.5}}
    async with Stack([LONG if streamed else WIDE], **settings) as stack, asyncio.timeout(120):
        own = await connect(stack, 1 << 16)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(own, request(STREAM if streamed else PLAIN))
        got = b""
        for _ in range(250):
            got += await loop.sock_recv(own, 4000)
            await asyncio.sleep(0.01)
        got += await rest(own)
        own.close()
        if streamed:
            assert body_in(got).endswith(b"data: [DONE]\n\n")
        else:
            head, _, body = got.partition(b"\r\n\r\n")
            assert len(body) == int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await stack.settled()

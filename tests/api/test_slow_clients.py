"""Clients that open connections and send little or nothing are cut; honest slow and idle ones are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from tests.api.harness import CHAT, Stack, body_of

BODY = orjson.dumps(body_of("Hello", {"max_tokens": 1}))
HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
WHOLE = f"{HEAD}content-length: {len(BODY)}\r\n\r\n".encode() + BODY


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def strict() -> AsyncIterator[Stack]:
    api = {"body_idle_s": 0.2, "body_min_bytes_per_s": 1000}
    async with Stack(server_header_timeout_s=0.2, api=api, routing={"health_timeout_s": 600}) as s:
        yield s


async def rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        return await reader.read()


async def answered(reader: asyncio.StreamReader) -> bytes:
    """One whole answer; what comes after it (a reset, when we went on sending) is not looked at."""
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        return head + await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


def refusal(raw: bytes) -> tuple[int, str]:
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head and b"connection: close" in head and b"application/json" in head, raw
    return int(head.split()[1]), orjson.loads(body)["error"]["code"]


async def test_a_connection_that_says_nothing_is_closed(strict: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    assert await rest(reader) == b""
    writer.close()


@pytest.mark.parametrize("begin", [b"POST /v1", HEAD.encode(), HEAD.encode() + b"content-length: 5"])
async def test_unfinished_headers_are_a_408(strict: Stack, begin: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(begin)
    assert refusal(await rest(reader)) == (408, "request_timeout")
    writer.close()


@pytest.mark.parametrize("drop", [b"x", b"\r\n"])
async def test_headers_that_trickle_are_cut_too(strict: Stack, drop: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(b"" if drop == b"\r\n" else HEAD.encode() + b"x-a: ")

    async def trickle() -> None:
        while not reader.at_eof():
            writer.write(drop)
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    if drop == b"x":
        assert refusal(await answered(reader))[0] == 408
    else:
        with contextlib.suppress(ConnectionResetError):
            assert await rest(reader) == b""
    trickling.cancel()
    writer.close()


async def test_a_body_that_stands_still_is_a_408(strict: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(WHOLE[:-5])
    assert refusal(await rest(reader)) == (408, "request_timeout")
    writer.close()


async def test_a_body_that_crawls_is_a_408(strict: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(f"{HEAD}content-length: 100000\r\n\r\n".encode())

    async def crawl() -> None:
        while not reader.at_eof():
            writer.write(b" ")
            await asyncio.sleep(0.02)

    crawling = asyncio.create_task(crawl())
    assert refusal(await answered(reader)) == (408, "request_timeout")
    crawling.cancel()
    writer.close()


async def test_idle_between_requests_and_a_long_answer_are_no_fault(strict: Stack) -> None:
    strict.engine.script([{"pieces": ["a", "b"], "delay_ms": 300}])
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    for _ in range(2):
        writer.write(WHOLE)
        assert (await answered(reader)).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(0.5)
    writer.close()


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"\x16\x03\x01\x02\x00"])
async def test_malformed_http_has_an_openai_body(strict: Stack, raw: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(raw)
    assert refusal(await rest(reader)) == (400, "invalid_request")
    writer.close()


async def test_nonsense_after_a_request_does_not_come_into_its_answer(strict: Stack) -> None:
    strict.engine.script([{"pieces": ["a", "b"], "delay_ms": 200}])
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(WHOLE + b"nonsense\r\n\r\n")
    answer = await answered(reader)
    assert answer.startswith(b"HTTP/1.1 200") and orjson.loads(answer.partition(b"\r\n\r\n")[2])["choices"]
    assert refusal(await rest(reader)) == (400, "invalid_request")
    writer.close()


@pytest.mark.parametrize(
    "lines",
    [b"x-a: " + b"a" * 70_000, b"x-a: " + b"a" * 1_000_000, b"\r\n".join(b"x-%d: 1" % i for i in range(300))],
    ids=["long", "very long", "many"],
)
async def test_headers_are_bounded(strict: Stack, lines: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n\r\n")
    assert refusal(await answered(reader)) == (431, "request_headers_too_large")
    writer.close()


async def test_a_header_without_end_is_cut_before_it_takes_memory(strict: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(b"GET /" + b"a" * 10_000)
    for _ in range(100):
        if writer.transport.is_closing() or reader.at_eof() or reader._buffer:  # type: ignore[attr-defined]
            break
        writer.write(b"a" * 10_000)
        await asyncio.sleep(0.01)
    assert refusal(await answered(reader)) == (431, "request_headers_too_large")
    writer.close()


async def test_large_headers_within_the_limits_are_taken(strict: Stack) -> None:
    headers = {f"x-{i}": "a" * 300 for i in range(150)}
    assert (await strict.get("/health", headers=headers)).status == 200

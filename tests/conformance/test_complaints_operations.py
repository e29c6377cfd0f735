"""Public complaints about limits, media, connections and metrics, each as the promise that answers it."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from typing import Any

import aiohttp
import orjson
import pytest

from tests.api.harness import CHAT, Stack, body_of
from tests.fixtures.media.png import png

PIXEL = "data:image/png;base64," + base64.b64encode(png(8, 8)).decode()


def image(url: str = PIXEL) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def test_19_too_many_images_is_a_400_that_names_the_part_the_limit_and_the_count() -> None:
    async with Stack(media={"budget": {"max_images": 2}}) as s:
        assert (await s.chat([image(), image()])).status == 200
        refused = await s.chat([{"type": "text", "text": "x"}, image(), image(), image()])
        assert refused.status == 400
        assert refused.error["param"] == "messages[0].content[3]"
        assert "2" in refused.error["message"] and "3" in refused.error["message"]


async def test_20_unreachable_videos_do_not_hang_the_server(stack: Stack) -> None:
    video = {"type": "video_url", "video_url": {"url": "http://10.255.255.1/x.mp4"}}
    tasks = [asyncio.create_task(stack.chat([video])) for _ in range(15)]
    async with asyncio.timeout(10):
        assert (await stack.get("/health")).status == 200
        for answer in await asyncio.gather(*tasks):
            assert answer.status in (400, 504)
            assert answer.error["param"].startswith("messages[0].content[0]")


async def test_21_a_huge_data_url_is_refused_before_decoding_and_never_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = base64.b64encode(bytes(range(256)) * 40_000).decode()
    async with Stack(api={"max_body_bytes": 1 << 20}) as s:
        answer = await s.chat([image("data:image/png;base64," + secret)])
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        header = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00"
        bomb = await s.chat([image("data:image/png;base64," + base64.b64encode(header + bytes(40)).decode())])
        assert bomb.status == 400
        assert bomb.error["param"].startswith("messages[0].content[0]")
        await s.chat([image()])
    for text in caplog.messages:
        assert secret[:64] not in text
        assert PIXEL[30:60] not in text


@pytest.mark.parametrize("size", [32_769, 1 << 20])
async def test_22_ordinary_large_bodies_pass(stack: Stack, size: int) -> None:
    messages = [{"role": "user", "content": "Hi", "name": "x" * size}]
    assert (await stack.chat(messages=messages)).status == 200


async def test_22_the_413_is_json_and_reaches_a_client_that_is_still_writing() -> None:
    async with Stack(api={"max_body_bytes": 100_000}) as s:
        for _ in range(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
            head = (
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 4000000\r\n\r\n"
            )
            writer.write(head.encode() + bytes(4_000_000))
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 413")
            headers, _, body = answer.partition(b"\r\n\r\n")
            assert b"connection: close" in headers.lower()
            assert orjson.loads(body)["error"]["code"] == "request_too_large"


async def test_24_an_idle_connection_the_engine_closed_is_no_error() -> None:
    """The engine closes idle connections sooner than our pool drops them; the next request is tried once more."""
    answered = 0

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower()).group(1)) if head[:4] == b"POST" else 0
        await reader.readexactly(length)
        answered += head[:4] == b"POST"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
        lines = [
            {"index": 0, "output_ids": [72]},
            {"index": 0, "finish": {"type": "stop"}, "usage": usage},
            {"done": True},
        ]
        body = b"\n".join(map(orjson.dumps, lines)) + b"\n" if length else b"{}"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()  # keep-alive was promised, and is broken

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Stack(engines=[{"url": url}], upstream={"pool_idle_s": 60}) as s:
        for _ in range(4):
            assert (await s.chat("Hi")).status == 200
            await asyncio.sleep(0.1)
    server.close()
    assert answered >= 4


async def test_24_clients_may_idle_between_two_requests(stack: Stack) -> None:
    connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector) as session:
        for _ in range(2):
            async with session.post(stack.url + CHAT, json=body_of("Hi", {})) as response:
                assert response.status == 200
                await response.read()
            await asyncio.sleep(0.2)
        assert len(connector._conns) == 1
    assert (await stack.get("/health")).status == 200


async def test_25_counters_only_go_up(stack: Stack) -> None:
    seen = []
    for _ in range(3):
        await stack.chat("Hi")
        seen.append(await stack.metric("catalejo_http_requests_total"))
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]
    text = (await stack.get("/metrics")).raw.decode()
    assert "pid=" not in text


async def test_26_the_trace_of_the_client_goes_on_in_the_engine(stack: Stack) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await stack.post(CHAT, body_of("Hi", {}), {"traceparent": trace})
    assert stack.sent["traceparent"].split("-")[1] == trace.split("-")[1]

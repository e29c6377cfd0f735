"""What HTTP allows and clients rarely send: upgrades, expectations. The answer is always an OpenAI body."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from tests.api.harness import CHAT, Stack, body_of

BODY = orjson.dumps(body_of("Hello", {"max_tokens": 1}))
UPGRADE = "connection: Upgrade\r\nupgrade: {}\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZQ==\r\n"


async def ask(stack: Stack, *requests: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """All on one connection, one after the other; ends early when the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    answers = []
    try:
        async with asyncio.timeout(20):
            for request in requests:
                writer.write(request)
                try:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                except asyncio.IncompleteReadError:
                    break
                lines = head.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                answers.append((int(lines[0].split()[1]), headers, body))
    finally:
        writer.close()
    return answers


def get(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode()


def post(headers: str = "") -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n"
    return f"{head}{headers}\r\n".encode() + BODY


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (CHAT, 405, "method_not_allowed"),
        ("/v1/realtime", 404, "not_found"),
        ("/v1/models/none", 404, "model_not_found"),
    ],
)
async def test_a_websocket_upgrade_gets_an_error_body(stack: Stack, path: str, status: int, code: str) -> None:
    [(got, headers, body)] = await ask(stack, get(path, UPGRADE.format("websocket")))
    assert (got, orjson.loads(body)["error"]["code"]) == (status, code)
    assert headers["x-request-id"] and headers["content-type"] == "application/json"


async def test_an_upgrade_that_is_offered_beside_a_request_is_left_alone(stack: Stack) -> None:
    """curl --http2 offers h2c with every first request, a POST with its body too."""
    answers = await ask(stack, post(UPGRADE.format("h2c")), post())
    assert answers[0][0] == 200 and orjson.loads(answers[0][2])["choices"]
    assert all(status == 200 for status, _, _ in answers)


async def test_a_declined_upgrade_costs_nothing_however_the_bytes_come(stack: Stack) -> None:
    offer = UPGRADE.format("h2c").replace("connection: Upgrade", "Connection: keep-alive, Upgrade, HTTP2-Settings")
    request = post(offer + "http2-settings: AAMAAABkAAQAAP__\r\n")
    chunked = request.replace(f"content-length: {len(BODY)}".encode(), b"transfer-encoding: chunked")
    chunked = chunked.removesuffix(BODY) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    for whole in (request, chunked):
        for size in (1, 7, 64, len(whole)):
            reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
            writer.transport.get_extra_info("socket").setsockopt(6, 1, 1)  # TCP_NODELAY
            for i in range(0, len(whole), size):
                writer.write(whole[i : i + size])
                await asyncio.sleep(0)
            writer.write(post())  # pipelined
            for _ in range(2):
                async with asyncio.timeout(20):
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    assert head.startswith(b"HTTP/1.1 200"), await reader.readexactly(length)
                    await reader.readexactly(length)
            writer.close()


async def test_connect_is_refused(stack: Stack) -> None:
    [(status, _, body)] = await ask(stack, b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n")
    assert status in (400, 404, 405) and orjson.loads(body)["error"]["code"]


@pytest.mark.parametrize("value", ["200-ok", "100-continue, x", "100", "garbage"])
async def test_an_expectation_that_cannot_be_met_is_a_417(stack: Stack, value: str) -> None:
    before = len(stack.engine.requests())
    [(status, headers, body)] = await ask(stack, post(f"expect: {value}\r\n"), post())
    assert (status, orjson.loads(body)["error"]["code"]) == (417, "expectation_failed")
    assert headers["connection"] == "close"
    assert len(stack.engine.requests()) == before


@pytest.mark.parametrize("value", ["100-continue", "100-Continue"])
async def test_100_continue_is_answered_before_the_body(stack: Stack, value: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    head, _, body = post(f"expect: {value}\r\nconnection: close\r\n").partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    async with asyncio.timeout(20):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()

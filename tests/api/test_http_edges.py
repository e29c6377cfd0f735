"""What HTTP allows and clients rarely send: upgrades, expectations. The answer is always an OpenAI body."""

from __future__ import annotations

import asyncio
from typing import Any

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


def post(headers: str = "", **fields: Any) -> bytes:
    body = orjson.dumps(body_of("Hello", fields)) if fields else BODY
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}{headers}\r\n".encode() + body


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


CHUNKED = (
    f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".encode()
)
FIRST_CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)


def last_refusal(answers: list[tuple[int, dict[str, str], bytes]]) -> tuple[int, str]:
    status, headers, body = answers[-1]
    assert headers["connection"] == "close" and headers["x-request-id"]
    return status, orjson.loads(body)["error"]["code"]


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("valid", [[get("/health")], [post()], [post(), get("/health"), post()]])
@pytest.mark.parametrize(
    ("after", "refusal"),
    [
        (b"garbage\r\n\r\n", (400, "invalid_request")),
        ("é}".encode(), (400, "invalid_request")),  # of a body whose length was counted in characters
        (get("/health", "x-a: b\r\n" * 201), (431, "request_headers_too_large")),
        (get("/health", f"x-a: {'b' * (65 << 10)}\r\n"), (431, "request_headers_too_large")),
        (get("/health", "expect: x\r\n"), (417, "expectation_failed")),
        (CHUNKED + b"zz\r\n", (400, "invalid_request")),
    ],
)
async def test_requests_before_an_unusable_one_are_answered_first(
    stack: Stack, valid: list[bytes], after: bytes, refusal: tuple[int, str], gap: bool
) -> None:
    whole = b"".join(valid)
    pieces = [whole, after] if gap else [whole + after]
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.005 * gap)
    answers = []
    async with asyncio.timeout(20):
        for _ in [*valid, after]:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            answers.append((int(head.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))))
        assert await reader.read() == b""
    writer.close()
    assert [status for status, _, _ in answers[:-1]] == [200] * len(valid)
    assert last_refusal(answers) == refusal


async def test_a_stream_before_an_unusable_request_comes_whole(stack: Stack) -> None:
    body = orjson.dumps(body_of("Hello", {"max_tokens": 4, "stream": True}))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(head.encode() + body + b"}\r\n")
    async with asyncio.timeout(20):
        stream, end, refusal = (await reader.read()).partition(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()
    assert stream.startswith(b"HTTP/1.1 200") and end and refusal.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("begun", [b"", FIRST_CHUNK, FIRST_CHUNK[:40]])
@pytest.mark.parametrize("size", [b"zz", b"-5", b"f" * 18, b"5 5"])
async def test_a_broken_chunked_body_is_a_400(stack: Stack, begun: bytes, size: bytes) -> None:
    if begun == FIRST_CHUNK[:40]:
        begun = b"%x\r\n%b\r\n" % (40, BODY[:40])
    before = len(stack.engine.requests())
    answers = await ask(stack, CHUNKED + begun + size + b"\r\nhello\r\n0\r\n\r\n", get("/health"))
    assert len(answers) == 1 and last_refusal(answers) == (400, "invalid_request")
    await stack.settled()  # the handler does not wait for the rest of the body
    assert len(stack.engine.requests()) == before


@pytest.mark.parametrize(
    "lines",
    [
        FIRST_CHUNK + b"0\r\n" + b"x-a: bbbbbbbbbb\r\n" * 20_000,
        FIRST_CHUNK + b"0\r\nx-a: " + b"b" * 300_000,
        FIRST_CHUNK + b"5;a=" + b"b" * 300_000,
    ],
    ids=["trailers", "one trailer", "extension"],
)
async def test_endless_trailers_and_chunk_extensions_are_a_400(stack: Stack, lines: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(CHUNKED)
    for i in range(0, len(lines), 4000):
        writer.write(lines[i : i + 4000])
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    assert head.startswith("HTTP/1.1 400") and "connection: close" in head


async def test_trailers_are_read_and_are_no_headers(stack: Stack) -> None:
    answers = await ask(stack, CHUNKED + FIRST_CHUNK + b"0\r\nx-request-id: trailing\r\n\r\n", post())
    assert [status for status, _, _ in answers] == [200, 200]
    assert "trailing" not in answers[0][1]["x-request-id"]


@pytest.mark.parametrize(
    "codings", ["gzip, chunked", "gzip", "chunked, chunked", "identity", "", "chunked\r\ntransfer-encoding: chunked"]
)
async def test_another_transfer_coding_is_refused(stack: Stack, codings: str) -> None:
    before = len(stack.engine.requests())
    request = CHUNKED.replace(b": chunked", f": {codings}".encode())
    answers = await ask(stack, request + FIRST_CHUNK + b"0\r\n\r\n", get("/health"))
    assert len(answers) == 1 and last_refusal(answers) == (400, "invalid_request")
    assert len(stack.engine.requests()) == before


@pytest.mark.parametrize("hosts", ["", "host: x\r\nHost: x\r\n"])
async def test_http_1_1_has_one_host(stack: Stack, hosts: str) -> None:
    answers = await ask(stack, get("/health").replace(b"host: x\r\n", hosts.encode()), get("/health"))
    assert len(answers) == 1 and last_refusal(answers) == (400, "invalid_request")


async def test_http_1_0_needs_no_host_and_chunked_in_any_case_is_taken(stack: Stack) -> None:
    [(status, _, _)] = await ask(stack, b"GET /health HTTP/1.0\r\n\r\n")
    assert status == 200
    [(status, _, _)] = await ask(stack, CHUNKED.replace(b": chunked", b": Chunked") + FIRST_CHUNK + b"0\r\n\r\n")
    assert status == 200


async def test_a_broken_body_of_a_declined_upgrade_is_a_400_too(stack: Stack) -> None:
    offer = UPGRADE.format("h2c").encode()
    request = CHUNKED.replace(b"host: x\r\n", b"host: x\r\n" + offer) + b"zz\r\n"
    answers = await ask(stack, request, get("/health"))
    assert len(answers) == 1 and last_refusal(answers) == (400, "invalid_request")


async def test_the_first_of_two_requests_ends_when_the_client_leaves(stack: Stack) -> None:
    """The running one is told, not only the newest."""
    stack.engine.script([{"pieces": ["a"] * 1000, "delay_ms": 50}])
    before = len(stack.engine.requests())
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(post(max_tokens=1000) + post())
    async with asyncio.timeout(20):
        while len(stack.engine.requests()) == before:
            await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()
        while not stack.engine.aborts():
            await asyncio.sleep(0.01)
    await stack.settled()


async def until_close(stack: Stack, request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Status line, headers and body of the only answer on a connection that the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(request)
    async with asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    lines = head.decode().split("\r\n")
    return lines[0], dict(line.lower().split(": ", 1) for line in lines[1:]), body


@pytest.mark.parametrize("version", ["1.0", "0.9"])
@pytest.mark.parametrize("asked", ["", "connection: keep-alive\r\n", "expect: 100-continue\r\n"])
async def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_the_connection(
    stack: Stack, version: str, asked: str
) -> None:
    """Symptom: chunk sizes between the events, for clients that know no chunks."""
    body = orjson.dumps(body_of("Hello", {"max_tokens": 4, "stream": True}))
    head = f"POST {CHAT} HTTP/{version}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{asked}\r\n"
    status, headers, events = await until_close(stack, head.encode() + body)
    assert status == "HTTP/1.1 200 OK"
    assert headers["connection"] == "close" and not {"transfer-encoding", "content-length"} & set(headers)
    lines = [line for line in events.split(b"\n\n") if line]
    assert lines[-1] == b"data: [DONE]" and all(line.startswith(b"data: {") for line in lines[:-1])


async def test_a_plain_answer_for_http_1_0_has_its_length_and_ends_with_the_connection(stack: Stack) -> None:
    request = post("connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
    status, headers, body = await until_close(stack, request)
    assert status == "HTTP/1.1 200 OK" and headers["connection"] == "close"
    assert int(headers["content-length"]) == len(body) and orjson.loads(body)["choices"]

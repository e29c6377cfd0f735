"""openai (Python) and plain HTTP: many streams over one pool, idle connections, pipelining, 100-continue."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from openai import AsyncOpenAI

from tests.conformance.stack import Stack, says

HELLO = [{"role": "user", "content": "Hello"}]
STREAMS = 200


async def test_two_hundred_streams_over_one_pool_do_not_mix(stack: Stack) -> None:
    """The engine echoes, so that each stream has a text of its own."""
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0) as client:

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(
                model=stack.model, messages=[{"role": "user", "content": f"number {number}"}], stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        texts = await asyncio.gather(*(one(i) for i in range(STREAMS)))
    assert texts == [f"number {i}" for i in range(STREAMS)]


def post(connection: http.client.HTTPConnection, stack: Stack) -> str:
    body = json.dumps({"model": stack.model, "messages": HELLO}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {stack.key}"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status == 200, answer
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_a_connection_survives_ten_idle_seconds(stack: Stack) -> None:
    stack.script(says("fine"))
    connection = http.client.HTTPConnection(urlsplit(stack.url).netloc, timeout=20)
    assert post(connection, stack) == "fine"
    own = connection.sock.getsockname()
    time.sleep(10)
    assert post(connection, stack) == "fine"
    assert connection.sock.getsockname() == own
    connection.close()


def raw_request(stack: Stack, text: str, extra: str = "") -> bytes:
    body = json.dumps({"model": stack.model, "messages": [{"role": "user", "content": text}]}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body


def read_response(sock: socket.socket) -> dict[str, object]:
    response = http.client.HTTPResponse(sock, method="POST")
    response.begin()
    body = response.read()
    assert response.status == 200, body
    parsed: dict[str, object] = json.loads(body)
    return parsed


def test_pipelined_requests_are_answered_in_order(stack: Stack) -> None:
    address = urlsplit(stack.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as sock:
        sock.sendall(raw_request(stack, "first") + raw_request(stack, "second"))
        data = b""
        while data.count(b'"finish_reason"') < 2:
            more = sock.recv(65536)
            assert more, data
            data += more
    assert data.count(b"HTTP/1.1 200") == 2
    assert data.index(b"first") < data.index(b"second")


def test_expect_100_continue_is_answered_before_the_body(stack: Stack) -> None:
    address = urlsplit(stack.url)
    whole = raw_request(stack, "x" * 5000, "expect: 100-continue\r\n")
    head, body = whole.split(b"\r\n\r\n", 1)
    with socket.create_connection((address.hostname, address.port), timeout=20) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        assert "choices" in read_response(sock)


def test_curl_with_a_large_body(stack: Stack, tmp_path: Path) -> None:
    """curl asks for 100-continue above 1 MB; the long text is in a field the model does not read."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    stack.script(says("fine"))
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"model": stack.model, "messages": HELLO, "padding": "x" * (3 << 20)}))
    command = ["curl", "-sS", "-v", "--max-time", "30", "-H", f"authorization: Bearer {stack.key}"]
    command += ["-H", "content-type: application/json", "--data-binary", f"@{file}"]
    done = subprocess.run([*command, f"{stack.url}/v1/chat/completions"], capture_output=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "fine"
    assert b"100 Continue" in done.stderr

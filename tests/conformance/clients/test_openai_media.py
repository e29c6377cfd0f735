"""openai (Python): image parts by data URL and by http URL, with each detail, in their order."""

from __future__ import annotations

import base64
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.conformance.stack import Stack, says


def png(width: int, height: int, shade: int) -> bytes:
    """A plain RGB picture; `shade` makes it one of its own."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(
        b"\0" + bytes([(x + y + shade) % 256 for x in range(width) for _ in range(3)]) for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def data_url(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def part(url: str, detail: str | None = None) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}


@pytest.fixture(scope="module")
def picture_url(started: Stack) -> Iterator[str]:
    body = png(70, 50, 9)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "image/png")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", started.image_port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{started.image_port}/picture.png"
    server.shutdown()
    server.server_close()


def ask(stack: Stack, *parts: dict[str, Any]) -> str | None:
    client = OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0)
    content = [*parts, {"type": "text", "text": "What is this?"}]
    answer = client.chat.completions.create(model=stack.model, messages=[{"role": "user", "content": content}])
    return answer.choices[0].message.content


def test_data_url_and_http_url_in_their_order(stack: Stack, picture_url: str) -> None:
    stack.script(says("Two pictures."))
    assert (
        ask(stack, part(data_url(png(60, 90, 1))), part(picture_url), part(data_url(png(60, 90, 2)))) == "Two pictures."
    )
    [seen] = stack.requests()
    first, second, third = seen["items"]
    assert len({first["hash"], second["hash"], third["hash"]}) == 3
    assert first["grid"] == third["grid"] != second["grid"]
    assert [i["ranges"][0][0] for i in seen["items"]] == sorted(i["ranges"][0][0] for i in seen["items"])
    assert seen["text"].count("]<]image[>[") == sum(i["ranges"][0][1] for i in seen["items"])


@pytest.mark.parametrize("detail", ["low", "high", "auto", None])
def test_detail(stack: Stack, detail: str | None) -> None:
    stack.script(says("A picture."))
    assert ask(stack, part(data_url(png(900, 600, 3)), detail)) == "A picture."
    [seen] = stack.requests()
    assert seen["items"][0]["ranges"][0][1] >= 1


def test_low_detail_is_smaller_than_high(stack: Stack) -> None:
    stack.script(says("A picture."))
    url = data_url(png(900, 600, 4))
    for detail in ("low", "high"):
        ask(stack, part(url, detail))
    low, high = (r["items"][0]["ranges"][0][1] for r in stack.requests())
    assert low < high


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:image/png;base64,AAAA", "media_undecodable"),
        ("http://10.0.0.1/x.png", "media_url_forbidden"),
        ("ftp://example.com/x.png", "invalid_media_url"),
    ],
)
def test_a_bad_picture_is_a_bad_request_that_names_its_part(stack: Stack, url: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(stack, part(data_url(png(30, 30, 1))), part(url))
    assert (caught.value.param or "").startswith("messages[0].content[1]")
    assert isinstance(caught.value.body, dict)
    assert caught.value.code in (code, "media_unsupported_format")
    assert stack.requests() == []


def test_the_same_picture_twice_is_sent_once(stack: Stack) -> None:
    stack.script(says("A picture."))
    url = data_url(png(64, 64, 77))
    for _ in range(2):
        assert ask(stack, part(url)) == "A picture."
    one, two = stack.requests()
    assert one["items"][0]["hash"] == two["items"][0]["hash"]
    assert (one["items"][0]["sent"], two["items"][0]["sent"]) == (True, False)


def test_rows_the_engine_has_lost_are_sent_again_and_the_client_sees_nothing(stack: Stack) -> None:
    url = data_url(png(64, 64, 78))
    stack.script(says("A picture."), says("Still a picture.", missing_hashes=["*"]))
    assert ask(stack, part(url)) == "A picture."
    assert ask(stack, part(url)) == "Still a picture."
    assert [(r["status"], r["items"][0]["sent"]) for r in stack.requests()] == [(200, True), (409, False), (200, True)]


def test_an_engine_that_never_finds_its_rows_is_a_502(stack: Stack) -> None:
    """A 409 never reaches a client, who would retry it."""
    stack.script({"status": 409})
    with pytest.raises(openai.InternalServerError) as caught:
        ask(stack, part(data_url(png(64, 64, 79))))
    assert caught.value.status_code == 502
    assert len(stack.requests()) == 2

"""What the gateway's benchmark sends is what it says: each request another one, and one that the gateway takes."""

from __future__ import annotations

import asyncio
import sys

import pytest

from engine.wire import ReplyReader, Tokens
from gateway.api.body import parse
from gateway.api.chat.protocol import ChatRequest, ImagePart
from gateway.api.completions.protocol import CompletionRequest
from gateway.bench.engine import BURST, BURST_TOKENS, Clock, Stream
from gateway.bench.http import KEPT_BYTES, RequestProtocol
from gateway.bench.load import CHAT, head_of
from gateway.bench.sender import KINDS
from gateway.media.preproc import decode_data_url, new_token, options_of, prepare_image
from gateway.media.settings import MediaSettings
from gateway.media.types import MediaPart


def bodies(kind: str, megabytes: float) -> list[bytes]:
    made = KINDS[kind]
    _, before, after = made.make(megabytes)
    return [before + made.number(n) + after for n in (0, 7)]


def test_pictures_differ_and_can_be_decoded() -> None:
    settings = MediaSettings()
    entries = []
    for body in bodies("images", 1.0):
        assert 0.95e6 < len(body) < 1.05e6
        [part] = parse(ChatRequest, body).messages[0].content
        assert isinstance(part, ImagePart)
        _, data = decode_data_url(part.image_url.url, 1 << 20)
        options = options_of(MediaPart("image", "p", url=part.image_url.url), settings)
        entries.append((data, prepare_image(data, options, settings, new_token())))
    (first, one), (second, other) = entries
    assert first != second and one.media.hash == other.media.hash, "the same pixels in two files"


@pytest.mark.parametrize(
    ("kind", "model"), [("text", ChatRequest), ("ids", CompletionRequest), ("bursts", ChatRequest)]
)
def test_prompts_are_requests_and_differ(kind: str, model: type) -> None:
    one, other = bodies(kind, 0.5)
    assert one != other and parse(model, one) != parse(model, other)
    assert kind == "bursts" or 0.45e6 < len(one) < 0.55e6


def test_a_burst_is_an_answer_of_so_many_tokens() -> None:
    reader, body, at = ReplyReader(), b"", 0
    while size := int(BURST[at : (line := BURST.index(b"\r\n", at))], 16):
        body += BURST[line + 2 : line + 2 + size]
        at = line + 4 + size
    replies = reader.feed(body)
    reader.finish()
    assert sum(isinstance(reply, Tokens) for reply in replies) == BURST_TOKENS


def test_the_benchmarks_engine_keeps_the_beginning_of_a_large_body_and_finds_the_next_request() -> None:
    seen: list[tuple[str, bytes]] = []

    class Recorder(RequestProtocol):
        def on_request(self, path: str, body: bytes) -> None:
            seen.append((path, body))

    large = bytes(range(256)) * 1024
    data = head_of(1, "/a", len(large)) + large + head_of(1, "/b", 0) + head_of(1, CHAT, 2) + b"{}"
    for step in (len(data), 1000, 65536):
        seen.clear()
        protocol = Recorder()
        for start in range(0, len(data), step):
            protocol.data_received(data[start : start + step])
        assert seen == [("/a", large[:KEPT_BYTES]), ("/b", b""), (CHAT, b"{}")]


@pytest.mark.parametrize("kind", ["images", "text"])
async def test_the_sender_takes_the_answers_of_an_engine_that_keeps_the_connection(kind: str) -> None:
    """Symptom: behind the relay, the sender waited for ever for the end of a connection that nobody ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stream(Clock(50), 4096), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.bench.sender", "--port", str(port), "--kind", kind, "--megabytes", "0.1",
        "--seconds", "0.05", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await sender.communicate(b"go\n")
    server.close()
    assert sender.returncode == 0 and int(said.split()[-1]) >= KINDS[kind].at_once

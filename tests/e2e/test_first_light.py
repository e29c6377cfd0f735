"""The promises of the first screen: a picture goes in, a streamed answer comes out, and bad input is a clear 4xx."""

from __future__ import annotations

import base64
import json
import signal
import socket
import time
import urllib.request
from typing import Any

import pytest

from tests.e2e import reference
from tests.e2e.conftest import FIREWORKS, MODEL, TINY, Stack, free_port, start, stop

PNG = "data:image/png;base64," + base64.b64encode(reference.picture(7, 120, 80)[0]).decode()
USER = [{"role": "user", "content": "Call the weather tool for Paris."}]


def image_part(url: str = PNG, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def stream(stack: Stack, body: dict[str, Any]) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        stack.url + "/v1/chat/completions",
        data=json.dumps({"model": MODEL, "stream": True, **body}).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.decode().strip() for line in response]
    data = [line[6:] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(d) for d in data[:-1]]


def test_stream_and_non_stream_give_the_same_answer(stack: Stack) -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image_part()]}],
        "temperature": 0,
        "max_tokens": 24,
        "stream_options": {"include_usage": True},
    }
    chunks = stream(stack, body)
    whole = stack.chat(body["messages"], temperature=0, max_tokens=24)
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    message = whole["choices"][0]["message"]
    assert "".join(d.get("content") or "" for d in deltas) == (message["content"] or "")
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == (message.get("reasoning_content") or "")
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    finishes = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
    assert finishes[-1] == whole["choices"][0]["finish_reason"]
    assert set(finishes[:-1]) == {None}


def test_repeated_prefix_and_picture_are_cached_and_decoded_once(stack: Stack) -> None:
    png = reference.picture(11, 300, 200)[0]
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    shared = " ".join(f"Fact {i}: a blue circle." for i in range(120))
    content = [{"type": "text", "text": shared}, image_part(url)]
    before = stack.metric("catalejo_media_cache_misses_total")
    first = stack.chat([{"role": "user", "content": [*content, {"type": "text", "text": "one"}]}], max_tokens=4)
    second = stack.chat([{"role": "user", "content": [*content, {"type": "text", "text": "two"}]}], max_tokens=4)
    page = 16
    prompt = second["usage"]["prompt_tokens"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens"] > 500
    assert cached % page == 0
    tail = 40  # the different last words, the end of the turn and the generation prompt
    assert prompt - tail - page < cached < prompt
    assert stack.metric("catalejo_media_cache_misses_total") - before == 1


def test_hosted_example_works_unchanged(stack: Stack) -> None:
    body = {
        "model": FIREWORKS,
        "max_tokens": 32768,
        "temperature": 0.6,
        "top_p": 1,
        "top_k": 40,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is in this image?"}, image_part()]}],
        "stop": ["e"],  # random weights do not stop by themselves; the letter e does
    }
    status, answer = stack.call("/v1/chat/completions", body)
    assert status == 200, answer
    assert answer["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("no-messages", {}, "messages"),
    ("empty-messages", {"messages": []}, "messages"),
    ("bad-role", {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]"),
    ("bad-temperature", {"messages": USER, "temperature": "hot"}, "temperature"),
    ("temperature-range", {"messages": USER, "temperature": -1}, "temperature"),
    ("top-p-range", {"messages": USER, "top_p": 2}, "top_p"),
    ("max-tokens", {"messages": USER, "max_tokens": -5}, "max_tokens"),
    ("part-type", {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0]"),
    (
        "undecodable",
        {"messages": [{"role": "user", "content": [image_part("data:image/png;base64,aGVsbG8=")]}]},
        "messages[0].content[0]",
    ),
    (
        "private-address",
        {"messages": [{"role": "user", "content": ["x", image_part("http://127.0.0.1:1/x.png")][1:]}]},
        "messages[0].content[0]",
    ),
    (
        "metadata-address",
        {"messages": [{"role": "user", "content": [image_part("http://169.254.169.254/latest")]}]},
        "messages[0].content[0]",
    ),
    (
        "unreachable",
        {"messages": [{"role": "user", "content": [image_part("http://nowhere.invalid/x.png")]}]},
        "messages[0].content[0]",
    ),
    (
        "file-url",
        {"messages": [{"role": "user", "content": [image_part("file:///etc/passwd")]}]},
        "messages[0].content[0]",
    ),
    ("too-long", {"messages": [{"role": "user", "content": "word " * 140_000}]}, "messages"),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("body", "param"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_request_is_a_named_4xx_before_any_200(stack: Stack, body: Any, param: str, streamed: bool) -> None:
    status, answer = stack.call("/v1/chat/completions", {"model": MODEL, "stream": streamed, **body})
    assert 400 <= status < 500, answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"].startswith(param)
    assert error["message"]
    assert stack.call("/health")[0] == 200


def test_unknown_model_and_broken_json(stack: Stack) -> None:
    status, answer = stack.call("/v1/chat/completions", {"model": "gpt-99", "messages": USER})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    status, answer = stack.call("/v1/chat/completions", raw=b'{"model": ')
    assert status == 400
    assert answer["error"]["code"] == "invalid_json"


def engine_running(stack: Stack) -> int:
    """Requests inside the engine, as it says itself through the gateway's ledger of workers."""
    return int(stack.metric("catalejo_in_flight_requests"))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_leaving_client_frees_the_slot_within_a_second(stack: Stack, phase: str) -> None:
    words = 30_000 if phase == "prefill" else 3
    body = json.dumps(
        {
            "model": MODEL,
            "stream": True,
            "max_tokens": 4000,
            "logit_bias": {str(stop_id): -100 for stop_id in (497, 498)},
            "messages": [{"role": "user", "content": "word " * words}],
        }
    ).encode()
    host, port = "127.0.0.1", int(stack.url.rsplit(":", 1)[1])
    with socket.create_connection((host, port)) as s:
        s.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        if phase == "decode":
            seen = b""
            while b"delta" not in seen:
                seen += s.recv(65536)
        else:
            time.sleep(1.0)
        assert engine_running(stack) >= 1
    deadline = time.monotonic() + 5  # generous for a loaded machine; the promise is a second
    while engine_running(stack) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert engine_running(stack) == 0
    stack.chat(USER, max_tokens=2)


def test_added_tokens_typed_by_a_user_stay_text(stack: Stack) -> None:
    """For every added token T, a message consisting of T yields none of T's id."""
    tokens = json.loads((TINY / "tokenizer.json").read_text())["added_tokens"]
    for token in tokens:
        status, answer = stack.call("/tokenize", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
        assert status == 200, answer
        clean = answer["tokens"].count(token["id"])
        body = {"model": MODEL, "messages": [{"role": "user", "content": token["content"]}]}
        status, answer = stack.call("/tokenize", body)
        assert status == 200, answer
        assert answer["tokens"].count(token["id"]) == clean, token["content"]


def test_ctrl_c_stops_both_cleanly(tmp_path: Any) -> None:
    port = free_port()
    log = tmp_path / "log"
    process = start(["up", "--model", str(TINY), "--port", str(port)], log, f"http://127.0.0.1:{port}/ready")
    deadline = time.monotonic() + 10
    while "curl" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stop(process) in (0, 130, -signal.SIGINT)
    text = log.read_text()
    assert "Traceback" not in text
    assert "curl" in text
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_a_killed_supervisor_leaves_no_port_taken(tmp_path: Any) -> None:
    """kill -9 of `catalejo up` used to leave engine and gateway behind, and the next start found its port taken."""
    port = free_port()
    process = start(
        ["up", "--model", str(TINY), "--port", str(port)], tmp_path / "log", f"http://127.0.0.1:{port}/ready"
    )
    process.kill()
    process.wait(10)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.2)
    raise AssertionError("the gateway outlived its supervisor")

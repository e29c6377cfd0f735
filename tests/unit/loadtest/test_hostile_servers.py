"""Whatever a server sends, the run ends, says what came, and takes no latency from what is no answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadtest import wire_client
from loadtest.executor import ERROR_PAUSE_S
from loadtest.load import Load
from loadtest.metrics import latency
from loadtest.payloads.text import Calibration
from loadtest.reading import Sample, sample
from loadtest.running import Options, ServerError, Target, calibrate, run
from loadtest.scenario import Scenario
from loadtest.spool import Plan
from tests.unit.loadtest.servers import answering, stream

ONE_TURN = Scenario.model_validate({"name": "t", "description": "one turn", "new_tokens": 16, "output_tokens": 5})
TOKEN = b'{"choices": [{"delta": {"content": "a"}}]}'
USAGE = b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}'
REFUSED = b"HTTP/1.1 %b\r\ncontent-length: 2\r\n\r\n{}"


def go(url: str, **load: Any) -> dict[str, Any]:
    settings = {"rate": 20.0, "arrival": "constant", "warmup_s": 0.0, "duration_s": 0.5, "timeout_s": 0.5, **load}
    return run(Options(Target(url, "m"), ONE_TURN, Load(**settings)), calibration=Calibration())


def usage(counts: bytes) -> bytes:
    return b'{"choices": [], "usage": ' + counts + b"}"


def read(answer: bytes) -> Sample:
    """As if it had come in one read, 0.1 s after the request was due."""
    exchange = wire_client.Exchange(due=0, sent=0, end=200_000_000, raw=bytearray(answer))
    exchange.stamps.append(100_000_000)
    exchange.ends.append(len(answer))
    return sample(Plan(0, 0, 0, 5, 0, 0, 100, "measure"), exchange)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (REFUSED % b"429 Too Many Requests", "http_429"),
        (REFUSED % b"500 Internal Server Error", "http_5xx"),
        (stream(TOKEN, usage(b'{"prompt_tokens": 1e30, "completion_tokens": 1}'), b"[DONE]"), "bad_usage"),
        (stream(TOKEN, usage(b'{"prompt_tokens": 3, "completion_tokens": -1}'), b"[DONE]"), "bad_usage"),
        (stream(TOKEN, usage(b'{"prompt_tokens": 3, "completion_tokens": "9"}'), b"[DONE]"), "bad_usage"),
        (stream(TOKEN, usage(b'{"prompt_tokens": 3, "completion_tokens": 9223372036854775807}'), b"[DONE]"), "bad_usage"),
        (stream(TOKEN, usage(b"[1]"), b"[DONE]"), "bad_usage"),
        (stream(TOKEN, b"[DONE]"), "no_usage"),
        (stream(b"\xff\xfe", USAGE, b"[DONE]"), "bad_json"),
        (stream(b"7", USAGE, b"[DONE]"), "bad_event"),
        (stream(b'{"error": {"message": "boom"}}', b"[DONE]"), "stream_error"),
        (stream(TOKEN, USAGE), "truncated"),
        (stream(TOKEN, USAGE, b"[DONE]")[:150], "truncated"),
        (b"\x00\x01\r\n\r\n", "http_0xx"),
        (b"", "truncated"),
    ],
)  # fmt: skip
def test_no_answer_is_an_error_class_and_never_a_latency(answer: bytes, error: str) -> None:
    found = read(answer)
    assert found.error == error
    assert latency.ttft(found) is latency.e2e(found) is latency.tpot(found) is None


@pytest.mark.parametrize(
    "events",
    [
        (TOKEN, USAGE, b"[DONE]"),
        (b'{"choices": null, "error": null}', TOKEN, USAGE, b"[DONE]"),
        (b'{"choices": [7, {"delta": null}, {"delta": {"content": [1]}}]}', USAGE, b"[DONE]"),
        (b'{"choices": [{"delta": {"tool_calls": [{}]}}], "usage": null}', USAGE, b"[DONE]"),
    ],
)
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n: comment\n\n"])
def test_odd_events_are_read_with_either_line_end(events: tuple[bytes, ...], end: bytes) -> None:
    found = read(stream(*events, end=end))
    assert (found.error, found.output_tokens, found.chunks) == ("", 1, [0.1])


def test_a_stream_without_end_is_given_up_after_the_timeout() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with answering(head, endless=b"a\r\ndata: {}\n\n\r\n") as url:
        result = go(url)
    assert set(result["requests"]["errors"]) == {"timeout"}
    assert result["latency_ms"]["ttft"] is None
    assert not result["verdict"]["valid"]


@pytest.mark.parametrize(
    ("head", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"400\r\n" + b"x" * 1024 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"x-header: y\r\n" * 100),
    ],
)
def test_an_answer_or_a_head_beyond_its_limit_is_cut_off(
    head: bytes, endless: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_client, "LONGEST_ANSWER", 10_000)
    monkeypatch.setattr(wire_client, "LONGEST_HEAD", 10_000)

    async def ask(url: str) -> wire_client.Exchange:
        pool = wire_client.Pool(url)
        done: asyncio.Future[wire_client.Exchange] = asyncio.get_running_loop().create_future()
        pool.send(pool.request("/", b"{}"), wire_client.Exchange(due=0), done.set_result)
        exchange = await asyncio.wait_for(done, 30)
        pool.close()
        await asyncio.sleep(0)
        return exchange

    with answering(head, endless=endless) as url:
        exchange = asyncio.run(ask(url))
    assert exchange.error == "too_long"
    assert len(exchange.raw) < 300_000


def test_users_of_a_closed_loop_do_not_hammer_a_server_that_refuses() -> None:
    with answering(REFUSED % b"503 Service Unavailable") as url:
        result = go(url, mode="closed", concurrency=4, duration_s=1.0)
    assert set(result["requests"]["errors"]) == {"http_503"}
    assert 4 <= result["requests"]["measured"] <= 4 * (1 + 1 / ERROR_PAUSE_S)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (REFUSED % b"429 Too Many Requests", "429"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "usage"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xfe{}", "does not answer"),
        (b"SSH-2.0-server\r\n\r\n", "does not answer"),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 35\r\n\r\n{"usage": {"prompt_tokens": 1e300}}', "usage"),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 31\r\n\r\n{"usage": {"prompt_tokens": 7}}', "from 7 to 7 for 1000 more"),
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_calibrated_is_refused_before_any_load(answer: bytes, words: str) -> None:
    with answering(answer) as url, pytest.raises(ServerError, match=words):
        calibrate(Target(url, "m"), 0)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense://x", "http://name.invalid"])
def test_unreachable_servers_are_named(url: str) -> None:
    with pytest.raises(ServerError, match=url):
        calibrate(Target(url, "m"), 0)

"""However the network cut the bytes, the same events come out, each stamped by the read that completed it."""

from __future__ import annotations

import json
from array import array

from hypothesis import given
from hypothesis import strategies as st

from loadtest.reading import Sample, sample
from loadtest.spool import Plan
from loadtest.wire_client import Exchange

PLAN = Plan(0, 0, 0, 10, 0, 0, 100, "measure")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def response(words: list[str], group: int) -> bytes:
    events = [json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})]
    events += [json.dumps({"choices": [{"index": 0, "delta": {"content": w}}]}, ensure_ascii=False) for w in words]
    events += [json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(words)}}), "[DONE]"]
    text = "".join(f"data: {e}\n\n" for e in events) + ": comment\n\n"
    data = text.encode()
    chunks = [data[i : i + group] for i in range(0, len(data), group)]
    return HEAD + b"".join(f"{len(c):x}\r\n".encode() + c + b"\r\n" for c in chunks) + b"0\r\n\r\n"


def read(raw: bytes, cuts: list[int]) -> Sample:
    ends = sorted({c % len(raw) for c in cuts} - {0} | {len(raw)})
    stamps = array("q", [1_000_000_000 * (i + 1) for i in range(len(ends))])
    exchange = Exchange(due=0, sent=1, end=stamps[-1], stamps=stamps, ends=array("q", ends), raw=bytearray(raw))
    return sample(PLAN, exchange, keep_text=True)


@given(
    words=st.lists(
        st.text(min_size=1, max_size=8).filter(lambda s: "\x00" not in s and s.isprintable()), min_size=1, max_size=12
    ),
    group=st.integers(1, 300),
    cuts=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_cuts_do_not_matter(words: list[str], group: int, cuts: list[int]) -> None:
    got = read(response(words, group), cuts)
    assert got.error == ""
    assert got.text == "".join(words)
    assert got.output_tokens == len(words)
    assert len(got.chunks) == len(words)
    assert got.chunks == sorted(got.chunks)


@given(cut=st.integers(len(HEAD), 10_000))
def test_a_response_that_stops_early_is_never_scored_as_success(cut: int) -> None:
    raw = response(["a", "b", "c"], 40)
    done = raw.index(b"[DONE]") + len(b"[DONE]\n\n")
    short = raw[: min(cut, done - 8)]
    assert read(short, []).error != ""


def test_an_error_event_is_an_error() -> None:
    body = b'data: {"error": {"message": "x"}}\n\ndata: [DONE]\n\n'
    raw = HEAD + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    assert read(raw, []).error == "stream_error"

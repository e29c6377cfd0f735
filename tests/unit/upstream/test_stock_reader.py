"""SGLang's events become the contract's replies, whatever the cut and whether they hold everything so far or not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from engine.wire import BadReply, Done, Failure, Finish, Reply, Tokens, Usage
from gateway.upstream.stock import StockReader


def event(ids: list[int], total: int, finish: Any = None, index: int | None = None, **meta: Any) -> bytes:
    info = {
        "id": "r",
        "prompt_tokens": 5,
        "completion_tokens": total,
        "cached_tokens": 3,
        "finish_reason": finish,
        **meta,
    }
    body: dict[str, Any] = {"text": "", "output_ids": ids, "meta_info": info}
    if index is not None:
        body["index"] = index
    return b"data: " + orjson.dumps(body) + b"\n\n"


END = b"data: [DONE]\n\n"
CUMULATIVE = event([1], 1) + event([1, 2, 3], 3) + event([1, 2, 3], 3, {"type": "stop", "matched": 3}) + END
INCREMENTAL = event([1], 1) + event([2, 3], 3) + event([], 3, {"type": "stop", "matched": 3}) + END
EXPECTED = [Tokens(0, [1], None, 3), Tokens(0, [2, 3]), Finish(0, "stop", Usage(5, 3, 3), 3), Done()]


def read(data: bytes, cut: int) -> list[Reply]:
    reader = StockReader()
    out = [r for i in range(0, len(data), cut) for r in reader.feed(data[i : i + cut])]
    reader.finish()
    return out


@pytest.mark.parametrize("data", [CUMULATIVE, INCREMENTAL], ids=["cumulative", "incremental"])
def test_every_cut_gives_the_same_replies(data: bytes) -> None:
    for cut in range(1, len(data) + 1):
        assert read(data, cut) == EXPECTED


def test_choices_and_logprobs() -> None:
    rows = {
        "output_token_logprobs": [[-0.5, 7, None], [None, 8, None]],
        "output_top_logprobs": [[[-0.5, 7, None]], None],
    }
    data = event([9], 1, index=1) + event([7, 8], 2, {"type": "length"}, index=0, **rows) + END
    assert read(data, len(data)) == [
        Tokens(1, [9], None, 3),
        Tokens(0, [7, 8], [(-0.5, 7, [(-0.5, 7)]), (float("-inf"), 8, [])], 3),
        Finish(0, "length", Usage(5, 2, 3)),
        Done(),
    ]


def test_failure_and_abort() -> None:
    assert read(b'data: {"error": {"message": "boom"}}\n\n', 10) == [Failure("engine_error", "boom", False)]
    assert read(event([1], 1, {"type": "abort", "message": "x"}) + END, 10_000)[1] == Finish(0, "abort", Usage(5, 1, 3))


@pytest.mark.parametrize("cut", [1, 10_000])
def test_a_refusal_is_the_requests_fault_and_ends_the_stream(cut: int) -> None:
    """SGLang checks much only after its 200: within the stream, with an HTTP status, and [DONE] after it."""
    told = b'data: {"error": {"message": "top_p must be in (0, 1]", "code": 400}}\n\n' + END
    assert read(told, cut) == [Failure("bad_request", "top_p must be in (0, 1]", False)]
    late = {"type": "abort", "message": "no such grammar", "status_code": 400}
    assert read(event([39], 1, late) + END, cut) == [Failure("bad_request", "no such grammar", False)]
    broken = {"type": "abort", "message": "out of memory", "status_code": 500}
    assert read(event([39], 1, broken) + END, cut) == [Failure("engine_error", "out of memory", False)]


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: []\n\n", b'data: {"meta_info": 1}\n\n'])
def test_rubbish_is_a_bad_reply(data: bytes) -> None:
    with pytest.raises(BadReply):
        read(data, len(data))


@pytest.mark.parametrize("cut", [1, 10_000])
def test_what_comes_after_the_end_is_of_no_answer(cut: int) -> None:
    """Symptom: with the same read it made a failure of a whole answer, with the next one it did not."""
    assert read(CUMULATIVE + event([1], 1) + b"data: {\n\n", cut) == EXPECTED


def test_an_end_without_done_is_a_bad_reply() -> None:
    with pytest.raises(BadReply):
        read(event([1], 1), 100)

"""SGLang's outputs as the contract's replies: cumulative, incremental, aborted, refused, n > 1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine import wire
from engine.sglang.streams import Choice, Stream, choice_rid


def output(ids: list[int], finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    base = {"prompt_tokens": 9, "cached_tokens": 4, "finish_reason": finish}
    return {"output_ids": ids, "meta_info": {**base, **meta}}


def said(replies: list[wire.Reply]) -> list[int]:
    return [i for r in replies if isinstance(r, wire.Tokens) for i in r.output_ids]


@pytest.mark.parametrize("incremental", [False, True])
def test_each_token_is_said_once(incremental: bool) -> None:
    choice = Choice(0, 9, False, 0, incremental)
    steps = [[1], [2, 3], [4]] if incremental else [[1], [1, 2, 3], [1, 2, 3, 4]]
    replies = [r for s in steps[:-1] for r in choice.take(output(s))]
    replies += choice.take(output(steps[-1], {"type": "stop", "matched": 4}))
    assert said(replies) == [1, 2, 3, 4]
    assert replies[-1] == wire.Finish(0, "stop", wire.Usage(9, 4, 4), 4)
    first, *rest = [r for r in replies if isinstance(r, wire.Tokens)]
    assert first.cached_tokens == 4
    assert all(r.cached_tokens is None for r in rest)


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("coalesced", [False, True])
def test_the_echo_of_an_abort_says_nothing_twice(incremental: bool, coalesced: bool) -> None:
    choice = Choice(0, 9, False, 0, incremental)
    replies = choice.take(output([1, 2]))
    echo = {"meta_info": {"finish_reason": {"type": "abort", "message": "x"}, "completion_tokens": 3}}
    if coalesced:
        echo["output_ids"] = [3, 3] if incremental else [1, 2, 3]
    else:
        replies += choice.take(output([3] if incremental else [1, 2, 3]))
        echo["output_ids"] = [3] if incremental else [1, 2, 3]
    replies += choice.take(echo)
    assert said(replies) == [1, 2, 3]
    assert replies[-1] == wire.Finish(0, "abort", wire.Usage(9, 3, 4), None)


@pytest.mark.parametrize("incremental", [False, True])
def test_logprob_rows_match_the_tokens(incremental: bool) -> None:
    choice = Choice(0, 9, True, 1, incremental)
    chosen = [[-0.5, 1, None], [-0.25, 2, None]]
    tops = [[[-0.5, 1, None], [-2.0, 7, None]], [[-0.25, 2, None]]]
    cut = slice(1, None) if incremental else slice(None)
    replies = choice.take(output([1], output_token_logprobs=chosen[:1], output_top_logprobs=tops[:1]))
    replies += choice.take(output([1, 2][cut], output_token_logprobs=chosen[cut], output_top_logprobs=tops[cut]))
    rows = [row for r in replies if isinstance(r, wire.Tokens) for row in r.logprobs or []]
    assert [list(row) for row in rows] == [[-0.5, 1, [(-0.5, 1)]], [-0.25, 2, [(-0.25, 2)]]]


def test_a_scheduler_refusal_is_a_failure_not_an_end() -> None:
    choice = Choice(0, 9, False, 0, True)
    (reply,) = choice.take(output([], {"type": "abort", "message": "no", "status_code": 400}))
    assert reply == wire.Failure("bad_request", "no", False)
    (reply,) = Choice(0, 9, False, 0, True).take(output([], {"type": "abort", "message": "no", "status_code": 503}))
    assert reply == wire.Failure("engine_failure", "no", True)


async def outputs(steps: list[dict[str, Any]], error: Exception | None = None) -> AsyncIterator[dict[str, Any]]:
    for step in steps:
        await asyncio.sleep(0)
        yield step
    if error is not None:
        raise error


async def collect(stream: Stream) -> list[wire.Reply]:
    replies: list[wire.Reply] = []
    while not stream.ended or stream._replies:
        replies += await stream.next(1)
    return replies


async def test_choices_after_the_first_wait_for_it_and_one_done_ends_all() -> None:
    begun: list[int] = []

    def begin(index: int) -> AsyncIterator[dict[str, Any]]:
        begun.append(index)
        return outputs([output([index]), output([index], {"type": "length", "length": 2})])

    parts = [(Choice(i, 9, False, 0, True), lambda i=i: begin(i)) for i in range(3)]
    stream = Stream("r", parts)
    stream.start()
    await asyncio.sleep(0)
    assert begun == [0]
    replies = await collect(stream)
    assert begun == [0, 1, 2]
    assert sum(isinstance(r, wire.Done) for r in replies) == 1
    assert isinstance(replies[-1], wire.Done)
    assert {r.index for r in replies if isinstance(r, wire.Finish)} == {0, 1, 2}


async def test_an_abort_before_the_other_choices_began_ends_them_too() -> None:
    hold = asyncio.Event()

    async def first() -> AsyncIterator[dict[str, Any]]:
        await hold.wait()
        yield output([], {"type": "abort", "message": "x"})

    stream = Stream("r", [(Choice(0, 9, False, 0, True), first), (Choice(1, 9, False, 0, True), first)])
    stream.start()
    stream.aborted = True
    hold.set()
    replies = await collect(stream)
    assert [r.type for r in replies if isinstance(r, wire.Finish)] == ["abort", "abort"]
    assert isinstance(replies[-1], wire.Done)


async def test_a_refusal_before_the_first_output_is_raised_not_streamed() -> None:
    stream = Stream("r", [(Choice(0, 9, False, 0, True), lambda: outputs([], ValueError("too long")))])
    with pytest.raises(ValueError, match="too long"):
        await stream.start()
    assert not stream.ended


async def test_a_crash_in_the_middle_is_a_retryable_failure() -> None:
    stream = Stream("r", [(Choice(0, 9, False, 0, True), lambda: outputs([output([1])], RuntimeError("boom")))])
    stream.start()
    replies = await collect(stream)
    assert isinstance(replies[-1], wire.Failure)
    assert replies[-1].retryable
    assert "boom" in replies[-1].message


async def test_a_stream_that_stops_without_a_finish_is_a_failure() -> None:
    stream = Stream("r", [(Choice(0, 9, False, 0, True), lambda: outputs([output([1])]))])
    stream.start()
    assert isinstance((await collect(stream))[-1], wire.Failure)


def test_no_request_id_begins_another() -> None:
    """SGLang aborts every request whose id begins with the one given."""
    ids = [choice_rid(rid, i, n) for rid in ("a", "ab", "a1") for n in (1, 2, 12) for i in range(n)]
    assert not [(a, b) for a in ids for b in ids if a != b and b.startswith(a)]

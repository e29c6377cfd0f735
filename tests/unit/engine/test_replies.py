"""The queue between an engine and its response: all that has arrived at once, nothing after the end, no lost wake-up."""

from __future__ import annotations

import asyncio

from engine import wire
from engine.contract.replies import ReplyQueue

LONG_S = 60.0


def tokens(*ids: int) -> wire.Tokens:
    return wire.Tokens(0, list(ids), None, None)


async def test_all_that_has_arrived_comes_at_once_and_in_order() -> None:
    queue = ReplyQueue()
    queue.push([tokens(1), tokens(2)])
    queue.push([tokens(3)])
    assert await queue.next(LONG_S) == [tokens(1), tokens(2), tokens(3)]
    assert await queue.next(0.0) == []


async def test_a_waiting_reader_wakes_for_news_and_for_a_client_that_leaves() -> None:
    queue = ReplyQueue()
    reader = asyncio.create_task(queue.next(LONG_S))
    await asyncio.sleep(0)
    queue.push([tokens(1)])
    assert await reader == [tokens(1)]
    reader = asyncio.create_task(queue.next(LONG_S))
    await asyncio.sleep(0)
    queue.leave()
    assert await reader == []
    assert queue.gone and not queue.ended
    assert await queue.next(LONG_S) == []  # and never waits again


async def test_nothing_comes_after_the_end() -> None:
    for last in (wire.Done(), wire.Failure("engine_failure", "x", True)):
        queue = ReplyQueue()
        queue.push([tokens(1), last, tokens(2)])
        queue.push([tokens(3)])
        assert queue.ended
        assert await queue.next(LONG_S) == [tokens(1), last]


async def test_an_empty_push_is_no_news() -> None:
    queue = ReplyQueue()
    queue.push([])
    assert await queue.next(0.0) == []
    assert not queue.ended

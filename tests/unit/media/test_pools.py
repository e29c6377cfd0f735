"""Threads for pixels: bounded, cancellable, and a panic in one of them is one refused file."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.media.pools import ThreadPool
from gateway.media.problems import MediaProblem


class Panic(BaseException):
    """Like the exception a panicking extension raises: not an Exception."""


async def test_a_panic_is_a_refused_file_and_the_thread_goes_on() -> None:
    pool = ThreadPool("t", 1, 1)

    def panic() -> None:
        raise Panic

    with pytest.raises(MediaProblem) as caught:
        await pool.run(panic)
    assert caught.value.code == "media_undecodable"
    assert await pool.run(lambda: 5) == 5
    pool.close()


async def test_queue_limit_and_after_on_every_path() -> None:
    pool = ThreadPool("t", 1, 1)
    gate, ended = threading.Event(), []
    work = [asyncio.create_task(pool.run(gate.wait, after=lambda n=n: ended.append(n))) for n in range(3)]  # type: ignore[misc]
    await asyncio.sleep(0.01)
    assert work[2].done() and ended == [2], "the third was refused at once"
    with pytest.raises(MediaProblem) as caught:
        await work[2]
    assert caught.value.code == "overloaded"
    work[1].cancel()
    gate.set()
    await asyncio.gather(*work, return_exceptions=True)
    async with asyncio.timeout(5):
        while pool.held:
            await asyncio.sleep(0.001)
    assert sorted(ended) == [0, 1, 2]
    pool.close()


async def test_cancelling_asks_running_work_to_stop_and_counts_it_until_it_has() -> None:
    pool = ThreadPool("t", 1, 1)
    gate, began = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        gate.wait()

    task = asyncio.create_task(pool.run(work, cancel=gate.set))
    await asyncio.to_thread(began.wait)
    assert pool.held == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        while pool.held:
            await asyncio.sleep(0.001)
    pool.close()

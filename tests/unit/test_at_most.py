"""gateway/at_most.py: a deadline without a timer for work that does not wait."""

from __future__ import annotations

import asyncio

import pytest

from gateway.at_most import at_most


async def test_work_that_never_waits_is_done_at_once_even_after_its_deadline() -> None:
    async def work() -> str:
        return "done"

    assert await at_most(asyncio.get_running_loop().time() - 1, work()) == "done"


async def test_work_that_waits_goes_on_to_its_end() -> None:
    steps: list[int] = []

    async def work() -> str:
        for step in range(3):
            await asyncio.sleep(0)
            steps.append(step)
        return await asyncio.sleep(0.001, "later")

    assert await at_most(asyncio.get_running_loop().time() + 60, work()) == "later"
    assert steps == [0, 1, 2]


async def test_the_deadline_ends_the_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what an end has to await still is
            ended.append("ended")

    with pytest.raises(TimeoutError):
        await at_most(asyncio.get_running_loop().time() + 0.01, work())
    assert ended == ["ended"]


@pytest.mark.parametrize("pauses", [0, 1])
async def test_what_the_work_raises_reaches_the_caller(pauses: int) -> None:
    async def work() -> None:
        for _ in range(pauses):
            await asyncio.sleep(0)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        await at_most(asyncio.get_running_loop().time() + 60, work())


async def test_a_cancelled_caller_ends_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(at_most(asyncio.get_running_loop().time() + 60, work()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_work_that_mends_a_thrown_error_goes_on() -> None:
    failing = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await failing
        except ValueError:
            await asyncio.sleep(0)
        return "mended"

    task = asyncio.create_task(at_most(asyncio.get_running_loop().time() + 60, work()))
    await asyncio.sleep(0)
    failing.set_exception(ValueError())
    assert await task == "mended"

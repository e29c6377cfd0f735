"""Callers of one key share one run; nobody's leaving harms the others, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from gateway.media.flight import SingleFlight


class Work:
    """A run that the test lets finish."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.begun += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error:
            raise self.error
        return "value"


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_hundred_callers_share_one_run() -> None:
    flight: SingleFlight[str] = SingleFlight()
    work = Work()
    callers = [asyncio.create_task(flight.run("k", work)) for _ in range(100)]
    await settle()
    work.gate.set()
    results = await asyncio.gather(*callers)
    assert work.begun == 1 and [joined for _, joined in results].count(False) == 1
    assert {value for value, _ in results} == {"value"}
    assert len(flight) == 0


async def test_other_keys_and_later_callers_run_anew() -> None:
    flight: SingleFlight[str] = SingleFlight()
    work = Work()
    work.gate.set()
    for key in ("a", "b", "a"):
        assert await flight.run(key, work) == ("value", False)
    assert work.begun == 3


async def test_one_callers_cancellation_leaves_the_rest_alone_and_the_last_one_cancels_the_run() -> None:
    flight: SingleFlight[str] = SingleFlight()
    work = Work()
    first, second = (asyncio.create_task(flight.run("k", work)) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    assert work.cancelled == 0
    second.cancel()
    await settle()
    assert work.cancelled == 1 and len(flight) == 0
    fresh = asyncio.create_task(flight.run("k", work))
    await settle()
    work.gate.set()
    assert await fresh == ("value", False)


async def test_an_error_reaches_every_caller() -> None:
    flight: SingleFlight[str] = SingleFlight()
    work = Work()
    work.error = KeyError("no")
    callers = [asyncio.create_task(flight.run("k", work)) for _ in range(3)]
    await settle()
    work.gate.set()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(result, KeyError) for result in results)


async def test_a_result_nobody_took_is_discarded_once() -> None:
    dropped: list[str] = []
    flight: SingleFlight[str] = SingleFlight(discard=dropped.append)
    work = Work()
    caller = asyncio.create_task(flight.run("k", work))
    await settle()
    work.gate.set()
    await asyncio.sleep(0)  # the run has finished; its caller has not woken up yet
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await settle()
    assert dropped == ["value"]


async def test_close_ends_what_is_under_way() -> None:
    flight: SingleFlight[str] = SingleFlight()
    work = Work()
    caller = asyncio.create_task(flight.run("k", work))
    await settle()
    await flight.close()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.cancelled == 1

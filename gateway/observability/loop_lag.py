"""Measures how late the event loop runs, the stall that every stream feels, and how many tasks it holds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from gateway.metrics import Metrics

TICK_S: Final = 0.05
TASKS_EVERY: Final = 20
"""Ticks between two counts of tasks, which cost a walk over all of them."""
PROBE_S: Final = 0.001


@asynccontextmanager
async def watch_loop(metrics: Metrics) -> AsyncIterator[None]:
    async def watch() -> None:
        for tick in itertools.count():
            if tick % TASKS_EVERY == 0:
                metrics.loop_tasks.set(len(asyncio.all_tasks()))
            began = perf_counter()
            await asyncio.sleep(TICK_S)
            metrics.loop_lag.observe(max(0.0, perf_counter() - began - TICK_S))

    task = asyncio.create_task(watch(), name="loop lag")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def lateness(seconds: float) -> list[float]:
    """How late, in seconds, a timer of 1 ms fired each time: all stalls of the loop of more than that, for one per cent of a
    core. The kernel's choice to run another thread on the loop's core counts as the rest does."""
    loop, late = asyncio.get_running_loop(), []
    until = perf_counter() + seconds
    over: asyncio.Future[None] = loop.create_future()

    def tick(due: float) -> None:
        now = perf_counter()
        late.append(max(0.0, now - due))
        if now < until:
            arm()
        elif not over.done():
            over.set_result(None)

    def arm() -> None:
        if not over.cancelled():
            loop.call_later(PROBE_S, tick, perf_counter() + PROBE_S)

    arm()
    await over
    return late

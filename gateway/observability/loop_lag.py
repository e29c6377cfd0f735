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

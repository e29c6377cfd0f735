"""Single flight: callers with the same key at the same moment share one run.

The run is a task of its own, so one caller's cancellation does not harm the others; when the last caller has gone
the run is cancelled. A result that nobody took is handed to `discard`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class _Flight(Generic[V]):
    __slots__ = ("taken", "task", "waiters")

    def __init__(self, task: asyncio.Task[V]) -> None:
        self.task = task
        self.waiters = 0
        self.taken = False


class SingleFlight(Generic[V]):
    def __init__(self, discard: Callable[[V], None] | None = None) -> None:
        self._flights: dict[Hashable, _Flight[V]] = {}
        self._tasks: set[asyncio.Task[V]] = set()
        self._discard = discard

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, V]]) -> tuple[V, bool]:
        """(result, whether another caller's run was joined). Raises what the run raised."""
        flight = self._flights.get(key)
        joined = flight is not None
        if flight is None:
            flight = self._flights[key] = self._launch(key, make)
        flight.waiters += 1
        try:
            value = await asyncio.shield(flight.task)
            flight.taken = True
            return value, joined
        finally:
            flight.waiters -= 1
            if flight.waiters == 0:
                self._forget(key, flight)
                if not flight.task.done():
                    flight.task.cancel()
                else:
                    self._drop_untaken(flight)
            del flight  # else: task, its error, the traceback, this frame: a cycle that would keep bodies in memory

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _launch(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, V]]) -> _Flight[V]:
        task = asyncio.create_task(make())
        flight = _Flight(task)
        self._tasks.add(task)

        def done(task: asyncio.Task[V]) -> None:
            self._tasks.discard(task)
            self._forget(key, flight)
            if not task.cancelled():
                task.exception()  # seen, also when nobody waits any more
            if flight.waiters == 0:
                self._drop_untaken(flight)

        task.add_done_callback(done)
        return flight

    def _forget(self, key: Hashable, flight: _Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _drop_untaken(self, flight: _Flight[V]) -> None:
        task = flight.task
        if self._discard and not flight.taken and not task.cancelled() and task.exception() is None:
            flight.taken = True
            self._discard(task.result())

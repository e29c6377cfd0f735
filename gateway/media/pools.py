"""Threads for pixels, bounded in number and in queue, apart from the event loop and from each other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from prometheus_client import Gauge, Histogram

from gateway.media.problems import MediaProblem
from gateway.threads import start_threads

T = TypeVar("T")
log = logging.getLogger("catalejo.media")


class ThreadPool:
    """Runs blocking functions that release the GIL. More than `queue_limit` waiting is refused, not queued.

    `nice` makes the threads yield the CPU to the event loop, which serves everybody's streams."""

    def __init__(
        self,
        name: str,
        threads: int,
        queue_limit: int,
        *,
        nice: int = 0,
        queued: Gauge | None = None,
        wait: Histogram | None = None,
    ) -> None:
        self._name = name
        self._limit = threads + queue_limit
        self._threads = threads
        self._held = 0
        self._queued = queued
        self._wait = wait
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix=f"media-{name}", initializer=_be_nice, initargs=(nice,)
        )

    def start(self) -> None:
        start_threads(self._pool, self._threads)

    @property
    def held(self) -> int:
        """Jobs running or waiting."""
        return self._held

    async def run(
        self,
        work: Callable[[], T],
        *,
        cancel: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> T:
        """`cancel` asks running work to stop when the caller is cancelled; `after` runs on the loop once the work has
        truly ended (or was never begun), which may be later than this call. Raises MediaProblem `overloaded`."""
        if self._held >= self._limit:
            if after is not None:
                after()
            raise MediaProblem(
                "overloaded", f"too much media waits for decoding ({self._limit} parts); try again", reason="queue_full"
            )
        loop = asyncio.get_running_loop()
        queued_at = time.monotonic()

        def timed() -> T:
            if self._wait is not None:
                self._wait.observe(time.monotonic() - queued_at)
            try:
                return work()
            except Exception:
                raise
            except BaseException:  # a panic of the extension: a fault of ours that this file brings out
                log.exception("the decoder panicked")
                raise MediaProblem(
                    "media_undecodable", "the decoder cannot cope with this file", reason="panic"
                ) from None

        def ended() -> None:
            self._count(-1)
            if after is not None:
                after()

        def ended_in_thread(_: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended)

        self._count(+1)
        future = self._pool.submit(timed)
        future.add_done_callback(ended_in_thread)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if cancel is not None:
                cancel()
            raise
        finally:
            del future  # else: future, its error, the traceback, this frame: a cycle that would keep pixels in memory

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _count(self, change: int) -> None:
        self._held += change
        if self._queued is not None:
            self._queued.set(max(0, self._held - self._threads))


def _be_nice(nice: int) -> None:
    """On Linux a thread has a niceness of its own; elsewhere this would be the whole process's, so nothing is done.

    Never less nice than the process is already: that is not allowed, and a thread that fails to start breaks its pool."""
    if nice and sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))

"""Videos go to worker processes (video_worker.VideoPool): a codec that crashes takes its process, not the gateway.

Their queue is their own, so a flood of videos delays videos only.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from typing import Any

from gateway.media import preproc
from gateway.media.cache import Entry
from gateway.media.problems import MediaProblem, from_preproc
from gateway.media.settings import MediaSettings

log = logging.getLogger("catalejo.media")


class Videos:
    def __init__(self, settings: MediaSettings, queued: Any = None) -> None:
        self._limit = settings.video_workers + settings.video_queue
        self._settings = settings
        self._queued = queued
        self._held = 0
        self._module: Any = None
        self._starting: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """A build without the decoder serves everything but videos. Processes are made for the first video."""
        if self._settings.video_workers == 0:
            return
        try:
            self._module = importlib.import_module("gateway.media.video_worker")
        except ImportError as error:
            log.warning("videos are refused: %s", error)

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
            if not self._starting.cancelled() and self._starting.exception() is None:
                await self._starting.result().close()

    def check(self) -> None:
        """Before any byte is fetched: is there somebody who could decode it, and room in the queue?"""
        if self._module is None:
            raise MediaProblem("video_unavailable", "this server has no video decoder")
        if self._held >= self._limit:
            raise MediaProblem(
                "overloaded", f"too many videos wait for decoding ({self._limit}); try again", reason="queue_full"
            )

    async def _started(self) -> Any:
        """The pool, started once. The start is a task of its own: a client that leaves meanwhile does not undo it."""
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.create_task(self._start_pool())
        return await asyncio.shield(self._starting)

    async def _start_pool(self) -> Any:
        pool = self._module.VideoPool(workers=self._settings.video_workers)
        try:
            await pool.start()
        except BaseException:
            await pool.close()
            raise
        return pool

    async def prepare(self, data: bytes, options: preproc.Options) -> Entry:
        self.check()
        self._count(+1)
        began = time.perf_counter()
        try:
            pool = await self._started()
            prepared = await pool.prepare(data, **options.video())
        except ValueError as error:
            raise from_preproc(error, "the video") from None
        finally:
            self._count(-1)
        return preproc.entry_of(prepared, len(data), time.perf_counter() - began)

    def _count(self, change: int) -> None:
        self._held += change
        if self._queued is not None:
            self._queued.set(max(0, self._held - self._settings.video_workers))

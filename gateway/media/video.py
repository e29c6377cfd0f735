"""Videos go to worker processes (video_worker.VideoPool): a codec that crashes takes its process, not the gateway.

Their queue is their own, so a flood of videos delays videos only.
"""

from __future__ import annotations

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
        self._pool: Any = None

    async def start(self) -> None:
        """A build without the decoder, or one whose processes do not come up, serves everything but videos."""
        try:
            module = importlib.import_module("gateway.media.video_worker")
            pool = module.VideoPool(workers=self._settings.video_workers)
            await pool.start()
        except (ImportError, ValueError, OSError) as error:
            log.warning("videos are refused: %s", error)
            return
        self._pool = pool

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    def check(self) -> None:
        """Before any byte is fetched: is there somebody who could decode it, and room in the queue?"""
        if self._pool is None:
            raise MediaProblem("video_unavailable", "this server has no video decoder")
        if self._held >= self._limit:
            raise MediaProblem(
                "overloaded", f"too many videos wait for decoding ({self._limit}); try again", reason="queue_full"
            )

    async def prepare(self, data: bytes, options: preproc.Options) -> Entry:
        self.check()
        self._count(+1)
        began = time.perf_counter()
        try:
            prepared = await self._pool.prepare(data, **options.video())
        except ValueError as error:
            raise from_preproc(error, "the video") from None
        finally:
            self._count(-1)
        return preproc.entry_of(prepared, len(data), time.perf_counter() - began)

    def _count(self, change: int) -> None:
        self._held += change
        if self._queued is not None:
            self._queued.set(max(0, self._held - self._settings.video_workers))

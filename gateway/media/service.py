"""Media parts in, prepared media out: the room's front door.

One part: options -> reference digest -> remembered refusal? -> remembered rows? -> bytes (sources.py) -> budgets ->
rows, decoded once per (scope, source key) whoever asks -> remembered. Parts of one request run side by side, a few
at a time; the first bad part ends them all. Cancelling `prepare` stops fetches and decodes nobody else waits for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any

from gateway.errors import ApiError
from gateway.media import preproc
from gateway.media.budgets import RequestBudget, Shares
from gateway.media.cache import Entry, Key, NegativeCache, PreparedCache, ReferenceCache
from gateway.media.disk import DiskCache
from gateway.media.fetch import Fetcher
from gateway.media.files import FileStore
from gateway.media.flight import SingleFlight
from gateway.media.inflight import BytesInFlight
from gateway.media.metrics import MediaMetrics
from gateway.media.pools import ThreadPool
from gateway.media.problems import TRANSIENT, MediaProblem
from gateway.media.resolve import Lookup
from gateway.media.settings import MediaSettings
from gateway.media.sources import Source, Sources, kind_of
from gateway.media.types import MediaPart, PreparedMedia
from gateway.media.video import Videos

INGEST_THREADS = 2
INGEST_QUEUE = 4096
DECODE_NICE = 5


class MediaService:
    """`lookup` and `ssl_context` replace the system's resolver and trust store in tests; no setting reaches them."""

    def __init__(
        self,
        settings: MediaSettings,
        metrics: MediaMetrics | None = None,
        *,
        lookup: Lookup | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        m = self.metrics = metrics or MediaMetrics()
        self.settings = settings
        in_flight = BytesInFlight(settings.max_bytes_in_flight, m.in_flight_bytes)
        self._ingest = ThreadPool("ingest", INGEST_THREADS, INGEST_QUEUE, wait=m.seconds.labels("ingest"))
        self._images = ThreadPool(
            "image",
            settings.image_threads,
            settings.image_queue,
            nice=DECODE_NICE,
            queued=m.queued.labels("image"),
            wait=m.seconds.labels("queue"),
        )
        self._videos = Videos(settings, m.queued.labels("video"))
        self._fetcher = Fetcher(settings.fetch, m, in_flight, lookup=lookup, ssl_context=ssl_context)
        self.files = FileStore(settings.files, m) if settings.files.enabled else None
        self._sources = Sources(settings, m, self._fetcher, in_flight, self._ingest, self.files)
        self._cache = PreparedCache(settings.cache_bytes, m)
        disk_dir = settings.disk_cache_dir
        self._disk = DiskCache(disk_dir, settings.disk_cache_bytes) if disk_dir is not None else None
        self._writes: set[asyncio.Task[None]] = set()
        self._references = ReferenceCache()
        self._negatives = NegativeCache(settings.negative_ttl_s)
        self._shares = Shares(settings.max_requests, settings.max_parts_per_tenant)
        self._decoding: SingleFlight[Entry] = SingleFlight()

    async def start(self) -> None:
        self._ingest.start()
        self._images.start()
        await self._fetcher.start()
        await self._videos.start()
        if self.files is not None:
            await self.files.start()

    async def close(self) -> None:
        await self._decoding.close()
        await self._sources.close()
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._fetcher.close()
        await self._videos.close()
        if self.files is not None:
            await self.files.close()
        self._images.close()
        self._ingest.close()

    async def prepare(self, parts: Sequence[MediaPart], *, tenant: str = "default") -> list[PreparedMedia]:
        """Prepared media in the order of `parts`. Raises ApiError with `param` of the part that failed first."""
        if not parts:
            return []
        budget = RequestBudget(self.settings.budget_of(tenant))
        try:
            budget.check_counts(parts)
        except ApiError:
            self.metrics.rejected.labels("request_budget").inc()
            raise
        jobs = [(part, *self._checked(part)) for part in parts]
        places = asyncio.Semaphore(self.settings.parts_at_once)

        async def one(part: MediaPart, kind: str, options: preproc.Options) -> PreparedMedia:
            async with places:
                try:
                    return (await self._prepare(part, kind, options, tenant, budget)).media
                except MediaProblem as problem:
                    self.metrics.rejected.labels(problem.reason).inc()
                    refusal = problem.at(part.param)
            # Raised out here it has no context, and the name goes: an error that is kept for a while, or waits for the
            # cycle collector, must not keep a picture's bytes alive.
            try:
                raise refusal
            finally:
                del refusal

        with self._shares.take(tenant, parts):
            return await _all_or_first_failure([one(*job) for job in jobs])

    def _checked(self, part: MediaPart) -> tuple[str, preproc.Options]:
        try:
            kind = kind_of(part, self.settings)
            options = preproc.options_of(part, self.settings)
            if part.modality == "video":
                self._videos.check()
        except MediaProblem as problem:
            self.metrics.rejected.labels(problem.reason).inc()
            raise problem.at(part.param) from None
        self.metrics.parts.labels(part.modality, kind).inc()
        return kind, options

    async def _prepare(
        self, part: MediaPart, kind: str, options: preproc.Options, tenant: str, budget: RequestBudget
    ) -> Entry:
        scope = tenant if self.settings.cache_scope == "tenant" or kind == "file" else ""
        reference = await self._sources.reference(part, scope, options)
        if reference in self._negatives:
            self.metrics.negative_hits.labels(part.modality).inc()
            self._negatives.refuse(reference)
        if kind == "file":
            await self._sources.check_file(part, tenant)  # deleted or expired: gone, whatever is remembered
        key = self._references.get(reference)
        entry = self._cache.get(key) if key is not None else None
        if entry is not None:
            self._count_hit(entry, "memory")
            _charge(budget, entry)
            return entry
        try:
            with await self._sources.get(reference, part, kind, tenant, options) as source:
                entry = await self._from_source(source, scope, options, budget)
                self._references.put(reference, (scope, source.key), self._ttl(kind, source))
                return entry
        except MediaProblem as problem:
            if problem.code not in TRANSIENT and problem.reason != "request_budget" and kind != "file":
                self._negatives.put(reference, problem)
            raise

    async def _from_source(self, source: Source, scope: str, options: preproc.Options, budget: RequestBudget) -> Entry:
        budget.charge_bytes(len(source.data))
        looked = source.looked
        if looked.tokens:
            budget.charge_pixels(looked.pixels)
            budget.charge_tokens(looked.tokens)
        key: Key = (scope, source.key)
        entry = self._cache.get(key)
        if entry is not None:
            self._count_hit(entry, "memory")
        else:
            entry, joined = await self._decoding.run(key, lambda: self._decode(key, source, options))
            if joined:
                self._count_hit(entry, "flight")
        if not looked.tokens:
            budget.charge_pixels(entry.pixels)
            budget.charge_tokens(entry.media.tokens)
        return entry

    async def _decode(self, key: Key, source: Source, options: preproc.Options) -> Entry:
        modality = options.modality
        kept = await self._from_disk(key)
        if kept is not None:
            self._count_hit(kept, "disk")
            self._cache.put(key, kept)
            return kept
        self.metrics.misses.labels(modality).inc()
        with source:
            if modality == "video":
                entry = await self._videos.prepare(source.data, options)
            else:
                entry = await self._decode_image(source, options)
        self.metrics.decodes.labels(modality).inc()
        self.metrics.seconds.labels("decode").observe(entry.seconds)
        self._cache.put(key, entry)
        if self._disk is not None:
            self._write_behind(self._disk, key, entry)
        return entry

    async def _decode_image(self, source: Source, options: preproc.Options) -> Entry:
        token = preproc.new_token()
        data = source.hold().data  # until the thread has ended, which a cancelled caller does not wait for
        return await self._images.run(
            lambda: preproc.prepare_image(data, options, self.settings, token),
            cancel=token.cancel,
            after=source.drop,
        )

    async def _from_disk(self, key: Key) -> Entry | None:
        disk = self._disk
        return None if disk is None else await self._ingest.run(lambda: disk.get(key))

    def _write_behind(self, disk: DiskCache, key: Key, entry: Entry) -> None:
        task = asyncio.create_task(self._ingest.run(lambda: disk.put(key, entry)))
        self._writes.add(task)

        def written(task: asyncio.Task[None]) -> None:
            self._writes.discard(task)
            if not task.cancelled():
                task.exception()  # no room in the queue: it is a cache, so be it

        task.add_done_callback(written)

    def _ttl(self, kind: str, source: Source) -> float:
        return min(self.settings.url_ttl_s, source.reusable_s) if kind == "http" else source.reusable_s

    def _count_hit(self, entry: Entry, level: str) -> None:
        self.metrics.hits.labels(entry.media.modality, level).inc()
        self.metrics.saved_seconds.inc(entry.seconds)


async def _all_or_first_failure(work: list[Coroutine[Any, Any, PreparedMedia]]) -> list[PreparedMedia]:
    """In order; the first failure, or being cancelled, cancels the rest, and all have ended on return."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()  # no cycle of task, error, traceback and this frame


def _charge(budget: RequestBudget, entry: Entry) -> None:
    budget.charge_bytes(entry.source_bytes)
    budget.charge_pixels(entry.pixels)
    budget.charge_tokens(entry.media.tokens)

"""From a part's reference (data: URL, http URL, file id) to its bytes, once for everybody who asks at that moment.

A `Source` holds encoded bytes under a lease of the in-flight account until the last user lets go.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from gateway.media import preproc
from gateway.media.fetch import Fetcher
from gateway.media.flight import SingleFlight
from gateway.media.inflight import BytesInFlight, Lease
from gateway.media.metrics import MediaMetrics
from gateway.media.pools import ThreadPool
from gateway.media.preproc import Looked, Options
from gateway.media.problems import MediaProblem
from gateway.media.settings import MediaSettings
from gateway.media.types import MediaPart, url_bytes
from gateway.media.urls import parse_target, scheme_of


class Files(Protocol):
    """What this room needs of the file store."""

    async def get(self, tenant: str, file_id: str) -> object: ...

    async def read(self, tenant: str, file_id: str, max_bytes: int) -> bytes: ...


class Source:
    """Encoded bytes of one part. `hold` and `drop` count users; the last `drop` gives the memory lease back."""

    __slots__ = ("_lease", "_users", "data", "key", "looked", "reusable_s")

    def __init__(self, data: bytes, key: str, looked: Looked, reusable_s: float, lease: Lease) -> None:
        self.data = data
        self.key = key
        self.looked = looked
        self.reusable_s = reusable_s
        self._lease = lease
        self._users = 0

    def hold(self) -> Source:
        self._users += 1
        return self

    def drop(self) -> None:
        self._users -= 1
        if self._users <= 0:
            self._lease.release()

    def __enter__(self) -> Source:
        return self.hold()

    def __exit__(self, *_: object) -> None:
        self.drop()


def kind_of(part: MediaPart, settings: MediaSettings) -> str:
    """ "data" | "http" | "file". Refuses, before any work, what cannot be fetched by its spelling alone."""
    if (part.url is None) == (part.file_id is None):
        raise MediaProblem("invalid_media_url", "give either a URL or a file id")
    if part.url is None:
        return "file"
    if scheme_of(part.url) == "data":
        return "data"
    parse_target(part.url, settings.fetch)
    return "http"


class Sources:
    def __init__(
        self,
        settings: MediaSettings,
        metrics: MediaMetrics,
        fetcher: Fetcher,
        in_flight: BytesInFlight,
        ingest: ThreadPool,
        files: Files | None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._fetcher = fetcher
        self._in_flight = in_flight
        self._ingest = ingest
        self._files = files
        self._flight: SingleFlight[Source] = SingleFlight(discard=lambda source: source.hold().drop())

    async def close(self) -> None:
        await self._flight.close()

    async def reference(self, part: MediaPart, scope: str, options: Options) -> bytes:
        text = part.url if part.url is not None else f"file-id:{part.file_id}"
        if url_bytes(text) < 16 << 10:
            return preproc.reference_digest(scope, text, options)
        return await self._ingest.run(lambda: preproc.reference_digest(scope, text, options))

    async def get(self, reference: bytes, part: MediaPart, kind: str, tenant: str, options: Options) -> Source:
        """The caller must `hold` it at once. Raises MediaProblem."""
        source, _ = await self._flight.run(reference, lambda: self._load(part, kind, tenant, options))
        return source

    async def _load(self, part: MediaPart, kind: str, tenant: str, options: Options) -> Source:
        image = part.modality == "image"
        max_bytes = self._settings.max_image_bytes if image else self._settings.max_video_bytes
        if kind == "http":
            assert part.url is not None
            fetched = await self._fetcher.fetch(part.url, part.modality, max_bytes, tenant=tenant)
            return await self._finish(
                kind, lambda: (fetched.content_type, fetched.data), options, fetched.reusable_s, fetched.lease
            )
        lease = self._in_flight.lease()
        try:
            if kind == "file":
                stored = await self._read_file(part, tenant, max_bytes)
                read: Callable[[], tuple[str, bytes]] = lambda: ("", stored)  # noqa: E731
                await lease.grow(len(stored), len(stored))
            else:
                url = part.url or ""
                expected = min(max_bytes, url_bytes(url) * 3 // 4)
                await lease.grow(expected, expected)
                read = lambda: preproc.decode_data_url(url, max_bytes)  # noqa: E731
        except BaseException:
            lease.release()
            raise
        return await self._finish(kind, read, options, math.inf, lease)

    async def _finish(
        self, kind: str, read: Callable[[], tuple[str, bytes]], options: Options, reusable_s: float, lease: Lease
    ) -> Source:
        max_pixels = self._settings.max_image_pixels

        def work() -> tuple[bytes, str, Looked]:
            declared, data = read()
            looked = preproc.look(data, declared, options, max_pixels)
            return data, preproc.source_key(data, options), looked

        try:
            data, key, looked = await self._ingest.run(work)
        except BaseException:
            lease.release()
            raise
        self._metrics.bytes.labels(kind).inc(len(data))
        if looked.mismatch:
            self._metrics.type_mismatches.inc()
        return Source(data, key, looked, reusable_s, lease)

    async def check_file(self, part: MediaPart, tenant: str) -> None:
        """Raises MediaProblem `file_not_found`."""
        await self._store().get(tenant, part.file_id or "")

    async def _read_file(self, part: MediaPart, tenant: str, max_bytes: int) -> bytes:
        return await self._store().read(tenant, part.file_id or "", max_bytes)

    def _store(self) -> Files:
        if self._files is None:
            raise MediaProblem("file_not_found", "this server keeps no files")
        return self._files

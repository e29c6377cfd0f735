"""Every metric of the media room. Label values come from the closed sets named here, never from a request."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class MediaMetrics:
    """modality: image | video. source: data | http | file. stage: ingest and queue (waits for a hashing and for a
    decoding thread), fetch, decode.

    "Not decoded twice" is `decodes` standing still while `hits` grows.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = registry if registry is not None else CollectorRegistry()
        self.registry = r
        self.parts = Counter("catalejo_media_parts", "Parts asked for", ["modality", "source"], registry=r)
        self.hits = Counter(
            "catalejo_media_cache_hits",
            "Parts answered without decoding; level: memory, disk, or flight (joined a decode under way)",
            ["modality", "level"],
            registry=r,
        )
        self.misses = Counter("catalejo_media_cache_misses", "Parts that had to be decoded", ["modality"], registry=r)
        self.negative_hits = Counter(
            "catalejo_media_cache_negative_hits", "Parts refused from memory", ["modality"], registry=r
        )
        self.decodes = Counter("catalejo_media_decodes", "Decodes begun", ["modality"], registry=r)
        self.fetches = Counter(
            "catalejo_media_fetches", "Fetches of a URL; outcome: ok, refused, failed, timeout", ["outcome"], registry=r
        )
        self.bytes = Counter("catalejo_media_bytes", "Encoded bytes taken in", ["source"], registry=r)
        self.saved_seconds = Counter(
            "catalejo_media_saved_seconds", "Fetch and decode time that cache hits made unnecessary", registry=r
        )
        self.seconds = Histogram(
            "catalejo_media_seconds", "Time of one step of one part", ["stage"], buckets=_SECONDS, registry=r
        )
        self.rejected = Counter("catalejo_media_rejected", "Parts refused", ["reason"], registry=r)
        self.type_mismatches = Counter(
            "catalejo_media_type_mismatches", "Declared media type was not what the bytes are", registry=r
        )
        self.cache_bytes = Gauge(
            "catalejo_media_cache_bytes", "Rows held in memory", registry=r, multiprocess_mode="livesum"
        )
        self.cache_entries = Gauge(
            "catalejo_media_cache_entries", "Prepared media held in memory", registry=r, multiprocess_mode="livesum"
        )
        self.cache_evictions = Counter("catalejo_media_cache_evictions", "Prepared media dropped for room", registry=r)
        self.in_flight_bytes = Gauge(
            "catalejo_media_in_flight_bytes", "Encoded bytes held in memory", registry=r, multiprocess_mode="livesum"
        )
        self.queued = Gauge(
            "catalejo_media_queued",
            "Parts waiting for a decoder",
            ["modality"],
            registry=r,
            multiprocess_mode="livesum",
        )
        self.stored_bytes = Counter("catalejo_media_stored_bytes", "Bytes taken into the file store", registry=r)

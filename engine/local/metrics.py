"""Every `catalejo_engine_*` metric, in one place. State is read when scraped; only times are recorded as they
happen."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.contract.media_store import MediaStore
from engine.local.core import Core

STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class EngineMetrics(Collector):
    def __init__(self, core: Core, store: MediaStore) -> None:
        self._core = core
        self._store = store
        self.registry = CollectorRegistry()
        self.registry.register(self)
        r = self.registry
        self.step_s = Histogram(
            "catalejo_engine_step_seconds",
            "Time of one step (a packed forward pass).",
            buckets=STEP_BUCKETS_S,
            registry=r,
        )
        self.finished = Counter("catalejo_engine_choices_finished", "Choices ended, by reason.", ["reason"], registry=r)
        self.refused = Counter("catalejo_engine_requests_refused", "Requests refused, by code.", ["code"], registry=r)
        for reason in ("stop", "length", "abort", "error"):
            self.finished.labels(reason)

    def collect(self) -> Iterable[Metric]:
        core, scheduler, cache = self._core, self._core.scheduler, self._core.cache
        gauges = {
            "choices_running": ("Choices that compute.", len(scheduler.running)),
            "choices_waiting": ("Choices that wait.", len(scheduler.waiting)),
            "context_tokens": ("Longest prompt + output.", core.max_context),
            "media_store_bytes": ("Patch rows held.", self._store.bytes),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"catalejo_engine_{name}", text, value=value)
        pages = GaugeMetricFamily("catalejo_engine_pages", "KV pages, by state.", labels=["state"])
        pages.add_metric(["used"], cache.used)
        pages.add_metric(["cached"], cache.cached)
        pages.add_metric(["free"], cache.n_pages - cache.used - cache.cached)
        yield pages
        counters = {
            "prefill_tokens": ("Prompt tokens computed, recomputed ones included.", core.totals.prefill_tokens),
            "decode_tokens": ("Output tokens computed one by one.", core.totals.decode_tokens),
            "prefix_hit_tokens": ("Prompt tokens found in the prefix cache.", scheduler.hit_tokens),
            "prefix_asked_tokens": ("Prompt tokens looked up in the prefix cache.", scheduler.asked_tokens),
            "preemptions": ("Choices that had to give up their pages.", scheduler.preemptions),
            "evicted_pages": ("Cached pages given to somebody else.", cache.evictions),
            "vision_segments": ("Segments that went through the vision tower.", core.features.computed),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"catalejo_engine_{name}", text, value=value)

"""The gateway's metric names, except the media room's (gateway/media/metrics.py, on the same registry).

Names are `catalejo_*`; labels follow OpenTelemetry's GenAI attribute names with `_` for `.`. Label values come from
configuration or from fixed tables (routes, error codes, steps), never from requests, so series stay bounded.
One process has one registry and serves it at /metrics; replicas are scraped one by one, so counters never mix.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from gateway.media.metrics import MediaMetrics

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TTFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_TOKENS = (1, 16, 64, 256, 1024, 4096, 16384, 65536, 131072, 262144, 524288, 1048576)
_MODEL = "gen_ai_request_model"


M = TypeVar("M", Counter, Gauge, Histogram)


@lru_cache(maxsize=8192)
def _child(metric: Any, *values: str) -> Any:
    return metric.labels(*values)


def child(metric: M, *values: str) -> M:
    """`metric.labels(*values)`, remembered: looking a child up costs more than counting."""
    return cast(M, _child(metric, *values))


class Metrics:
    """The registry and its members. `render()` is the body of /metrics."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry(auto_describe=True)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"catalejo_{name}", text, labels, registry=r)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"catalejo_{name}", text, labels, registry=r)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"catalejo_{name}", text, labels, registry=r, buckets=buckets)

        self.build = Info("catalejo_build", "Version and preprocessing version", registry=r)

        # HTTP edge
        self.http_requests = counter("http_requests_total", "Answered requests", "route", "status")
        self.http_in_flight = gauge("http_requests_in_flight", "Requests being answered")
        self.http_duration = histogram("http_request_duration_seconds", "Arrival to last byte", _WHOLE, "route")
        self.errors = counter("errors_total", "Refusals and failures by code of gateway.errors", "route", "error_type")
        self.unknown_fields = counter("unknown_fields_total", "Ignored unknown request fields", "route")
        self.client_disconnects = counter("client_disconnects_total", "Clients gone before the end", "phase")
        self.loop_lag = histogram("event_loop_lag_seconds", "How late a 50 ms timer fires", _FAST)

        # Generation
        self.ttft = histogram("time_to_first_token_seconds", "Arrival to first token", _TTFT, _MODEL)
        self.tpot = histogram("time_per_output_token_seconds", "Mean gap after the first token", _PER_TOKEN, _MODEL)
        self.generation_duration = histogram("generation_duration_seconds", "Arrival to finish", _WHOLE, _MODEL)
        self.tokens = counter(
            "tokens_total", "Tokens by type: input, output, cached_input, reasoning", _MODEL, "gen_ai_token_type"
        )
        self.prompt_tokens = histogram("prompt_tokens", "Prompt length after media expansion", _TOKENS, _MODEL)
        self.finishes = counter("finishes_total", "Finished choices", _MODEL, "gen_ai_response_finish_reason")
        self.overhead = histogram("gateway_overhead_seconds", "Arrival to engine request sent, media excluded", _FAST)
        self.steps = histogram("step_seconds", "Time in one step of a request", _FAST, "step")

        # Admission
        self.queue_depth = gauge("admission_queue_depth", "Requests waiting for a place")
        self.queue_seconds = histogram("admission_queue_seconds", "Wait for a place", _TTFT)
        self.admitted = gauge("admission_in_flight", "Places held")
        self.refused = counter("admission_refused_total", "Requests refused at admission", "reason")
        self.redis_up = gauge("admission_redis_up", "1 while the limits of all replicas are shared through Redis")
        self.redis_failures = counter("admission_redis_failures_total", "Questions to Redis without an answer in time")

        # Routing and upstream; `worker` is a configured engine name
        self.worker_up = gauge("worker_up", "1 when the engine answers its health check", "worker")
        self.worker_in_flight = gauge("in_flight_requests", "Requests running on the engine from here", "worker")
        self.worker_draining = gauge(
            "worker_draining", "1 while the engine gets no new requests by admin call", "worker"
        )
        self.worker_breaker = gauge("worker_breaker_open", "1 while the circuit breaker is open", "worker")
        self.discovery_failures = counter("discovery_failures_total", "Failed looks for engines", "source")
        self.routing_decisions = counter("routing_decisions_total", "Why a worker was picked", "policy", "reason")
        self.kv_events = counter(
            "kv_events_total", "Batches of KV events: applied, replayed, gap, restart, bad", "worker", "outcome"
        )
        self.prefix_index_exact = gauge(
            "prefix_index_exact", "1 while the engine's own events tell its cache", "worker"
        )
        self.upstream_requests = counter("upstream_requests_total", "Engine requests by status", "worker", "status")
        self.upstream_retries = counter("upstream_retries_total", "Engine requests sent again", "worker", "reason")
        self.upstream_aborts = counter("upstream_aborts_total", "Engine requests aborted", "worker", "reason")
        self.upstream_failures = counter("upstream_failures_total", "Failures after the 200", "worker", "error_type")
        self.upstream_bytes = counter("upstream_bytes_total", "Bytes sent to engines", "worker")

        # Media: the list is in gateway/media/metrics.py
        self.media = MediaMetrics(r)

    def forget_worker(self, name: str) -> None:
        """Drops every series of an engine that is gone, so that engines that come and go leave nothing behind."""
        for metric in vars(self).values():
            labels = getattr(metric, "_labelnames", ())
            if "worker" in labels:
                metric.remove_by_labels({"worker": name})
        _child.cache_clear()  # a remembered child of a dropped series would count for nobody

    def render(self) -> bytes:
        return generate_latest(self.registry)

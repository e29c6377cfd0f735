"""The gateway's metric names, except the media room's (gateway/media/metrics.py, on the same registry).

Names are `catalejo_*`; labels follow OpenTelemetry's GenAI attribute names with `_` for `.`. Label values come from
configuration or from fixed tables (routes, error codes, steps), never from requests, so series stay bounded.
One process has one registry and serves it at /metrics; replicas are scraped one by one, so counters never mix. The
processes of one `--workers N` command answer as one: their values live in files (prometheus_client's multiprocess mode, which
the supervisor switches on by PROMETHEUS_MULTIPROC_DIR), so nothing that was counted is lost when a process is killed.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.media.metrics import MediaMetrics

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TTFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_TOKENS = (1, 16, 64, 256, 1024, 4096, 16384, 65536, 131072, 262144, 524288, 1048576)
_MODEL = "gen_ai_request_model"
FILES: Final = "PROMETHEUS_MULTIPROC_DIR"


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

        def gauge(
            name: str, text: str, *labels: str, over_processes: Literal["livesum", "livemax", "livemin"] = "livesum"
        ) -> Gauge:
            return Gauge(f"catalejo_{name}", text, labels, registry=r, multiprocess_mode=over_processes)

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

        self.loop_tasks = gauge("event_loop_tasks", "Tasks of the event loop, counted every second")

        self.reloads = counter("config_reloads_total", "Reloads of the configuration: applied, refused", "result")
        self.reload_good = gauge(
            "config_last_reload_successful",
            "1 unless the last reload was refused",
            over_processes="livemin",
        )
        self.reload_time = gauge(
            "config_last_reload_success_timestamp_seconds",
            "When the configuration that holds was read",
            over_processes="livemin",
        )

        # Generation
        self.ttft = histogram("time_to_first_token_seconds", "Arrival to first token", _TTFT, _MODEL)
        self.itl = histogram(
            "inter_token_latency_seconds", "Gap between two arrivals of tokens of an answer", _PER_TOKEN, _MODEL
        )
        self.tpot = histogram("time_per_output_token_seconds", "Mean gap after the first token", _PER_TOKEN, _MODEL)
        self.generation_duration = histogram("generation_duration_seconds", "Arrival to finish", _WHOLE, _MODEL)
        self.tokens = counter(
            "tokens_total", "Tokens by type: input, output, cached_input, reasoning", _MODEL, "gen_ai_token_type"
        )
        self.prompt_tokens = histogram("prompt_tokens", "Prompt length after media expansion", _TOKENS, _MODEL)
        self.generations = counter(
            "generations_total", "Generation requests by outcome: ok, refused, failed, aborted", _MODEL, "outcome"
        )
        self.finishes = counter("finishes_total", "Finished choices", _MODEL, "gen_ai_response_finish_reason")
        self.overhead = histogram("gateway_overhead_seconds", "Arrival to engine request sent, media excluded", _FAST)
        self.steps = histogram("step_seconds", "Time in one step of a request", _FAST, "step")

        self.model_fallbacks = counter(
            "model_fallbacks_total", "Requests another model served", _MODEL, "gen_ai_response_model"
        )

        # The usage ledger and traces
        self.ledger_records = counter("ledger_records_total", "Requests in the ledger: written, dropped", "outcome")
        self.ledger_failures = counter("ledger_failures_total", "Writes that failed; their batch is tried again")
        self.trace_spans = counter("trace_spans_total", "Spans sent to the collector: exported, failed", "outcome")

        # Admission
        self.queue_depth = gauge("admission_queue_depth", "Requests waiting for a place")
        self.queue_seconds = histogram("admission_queue_seconds", "Wait for a place", _TTFT)
        self.admitted = gauge("admission_in_flight", "Places held")
        self.refused = counter("admission_refused_total", "Requests refused at admission", "reason")
        self.redis_up = gauge(
            "admission_redis_up",
            "1 while the limits of all replicas are shared through Redis",
            over_processes="livemin",
        )
        self.redis_failures = counter("admission_redis_failures_total", "Questions to Redis without an answer in time")

        # Routing and upstream; `worker` is a configured engine name
        self.worker_up = gauge(
            "worker_up", "1 when the engine answers its health check", "worker", over_processes="livemax"
        )
        self.worker_in_flight = gauge("in_flight_requests", "Requests running on the engine from here", "worker")
        self.worker_draining = gauge(
            "worker_draining",
            "1 while the engine gets no new requests by admin call",
            "worker",
            over_processes="livemax",
        )
        self.worker_breaker = gauge(
            "worker_breaker_open", "1 while the circuit breaker is open", "worker", over_processes="livemax"
        )
        self.worker_ejections = counter(
            "worker_ejections_total", "Engines left alone for being far from their peers", "worker", "reason"
        )
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

    @property
    def over_processes(self) -> bool:
        """Whether `render` reads the files of several processes: slow enough (milliseconds) for a thread."""
        return FILES in os.environ

    def forget_worker(self, name: str) -> None:
        """Drops every series of an engine that is gone, so that engines that come and go leave nothing behind."""
        for metric in vars(self).values():
            labels = getattr(metric, "_labelnames", ())
            if "worker" not in labels:
                continue
            if not self.over_processes:
                metric.remove_by_labels({"worker": name})
            elif isinstance(metric, Gauge):  # the files of several processes forget nothing: let it show nothing
                metric.labels(name).set(0)
        _child.cache_clear()  # a remembered child of a dropped series would count for nobody

    def in_flight_everywhere(self) -> dict[str, int]:
        """Requests that run on each engine, from all processes of this command. Reads the files, as `render` does."""
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        # A restricted registry would find nothing: the collector does not know its names before it has read the files.
        found = (metric for metric in together.collect() if metric.name == "catalejo_in_flight_requests")
        return {s.labels["worker"]: int(s.value) for metric in found for s in metric.samples}

    def render(self) -> bytes:
        if not self.over_processes:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        build = self.registry.restricted_registry(["catalejo_build_info"])  # the one kind that has no file
        return generate_latest(together) + generate_latest(build)

"""A result as Prometheus samples: pushed to a Pushgateway, or a file for a textfile collector.

One gauge per figure, named `catalejo_loadtest_*`, in seconds, tokens and requests; quantiles are a label, since they are
measured and not summed up from buckets. A Pushgateway keeps one result per scenario, model and load."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest, push_to_gateway

from loadtest.report.summary import PERCENTILES

JOB = "catalejo_loadtest"
TIMEOUT_S = 30.0


class PushError(RuntimeError):
    """The gateway cannot be reached or refuses; the message says which and why."""


def registry(result: dict[str, Any]) -> CollectorRegistry:
    """A figure the run has no value for is absent, not zero."""
    out = CollectorRegistry()

    def gauge(name: str, words: str, value: float | None) -> None:
        if value is not None:
            Gauge(f"{JOB}_{name}", words, registry=out).set(value)

    gauge("valid", "1 when the run may be quoted.", float(result["verdict"]["valid"]))
    gauge("started_timestamp_seconds", "When the run began.", result["config"].get("started_unix"))
    requests, tokens = result["requests"], result["tokens"]
    for key in ("measured", "ok"):
        gauge(f"requests_{key}", f"Requests {key}.", requests[key])
    for key in ("asked", "delivered", "completed"):
        gauge(f"requests_{key}_per_second", f"Requests {key} per second.", requests[f"{key}_per_s"])
    gauge("output_tokens_per_second", "Tokens generated per second, the server's count.", tokens["output_per_s"])
    gauge("input_tokens_per_second", "Prompt tokens per second, the server's count.", tokens["input_per_s"])
    gauge("cache_hit_ratio", "Share of prompt tokens that came from the prefix cache.", tokens["cache_hit_share"])
    if result["goodput"]:
        gauge("goodput_ratio", "Share of requests that met every objective.", result["goodput"]["share"])
        gauge("goodput_per_second", "Requests that met every objective.", result["goodput"]["requests_per_s"])
    errors = Gauge(f"{JOB}_errors", "Failed requests by class.", ["error"], registry=out)
    for kind, count in requests["errors"].items():
        errors.labels(kind).set(count)
    for name, words in (
        ("ttft", "Time to first token, from the moment a request was due."),
        ("itl", "Time between tokens."),
        ("tpot", "Time per output token of a request."),
        ("e2e", "Time to the end of an answer, from the moment a request was due."),
    ):
        _latency(out, name, words, result["latency_ms"][name])
    return out


def _latency(out: CollectorRegistry, name: str, words: str, found: dict[str, Any] | None) -> None:
    if found is None:
        return
    Gauge(f"{JOB}_{name}_mean_seconds", f"{words} Mean.", registry=out).set(found["mean"] / 1e3)
    quantiles = Gauge(f"{JOB}_{name}_seconds", words, ["quantile"], registry=out)
    for p in PERCENTILES:
        if found[f"p{p}"] is not None:
            quantiles.labels(f"{p / 100:g}").set(found[f"p{p}"] / 1e3)


def push(result: dict[str, Any], url: str) -> None:
    """Replaces what the gateway holds for this scenario, model and load. Raises PushError."""
    config, load = result["config"], result["load"]
    amount = f"rate={load['rate']:g}" if load["mode"] == "open" else f"concurrency={load['concurrency']}"
    grouping = {"scenario": config["scenario"], "model": config["model"], "load": amount}
    try:
        push_to_gateway(url, job=JOB, registry=registry(result), grouping_key=grouping, timeout=TIMEOUT_S)
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise PushError(f"--push-gateway {url}: {str(e) or type(e).__name__}") from None


def write(result: dict[str, Any], path: Path) -> None:
    """Through a file beside it and a rename: a collector never reads half of it."""
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(generate_latest(registry(result)))
    beside.replace(path)

"""Several machines' results as one: requests are joined row by row, so percentiles and intervals are exact; per-token gaps
are added up as histograms, exact too, within the histogram's stated relative error.

The runs must be of one test: same scenario, model, mode and duration, started together. Their seeds must differ, or the
machines sent the same requests. Rates are sums over the longest window. The verdict is the worst of theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from loadtest.report.summary import PERCENTILES, distribution
from loadtest.statistics import Histogram


class MergeError(ValueError):
    """The results are not of one test; the message names the field."""


def merge(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(results) < 2:
        raise MergeError("merging needs at least two results")
    first = results[0]
    for group, key in (("config", "scenario"), ("config", "model"), ("load", "mode"), ("load", "duration_s")):
        found = {str(r[group][key]) for r in results}
        if len(found) > 1:
            raise MergeError(f"{group}.{key} differs: {', '.join(sorted(found))}")
    if len({r["config"]["seed"] for r in results}) < len(results):
        raise MergeError("config.seed is the same in two results: those machines sent the same requests")
    samples = [row for r in results for row in r["samples"]]
    window = max(r["window_s"] for r in results)
    out = {
        **first,
        "verdict": {
            "valid": all(r["verdict"]["valid"] for r in results),
            "reasons": _named(results, "reasons"),
            "warnings": _named(results, "warnings"),
        },
        "config": {**first["config"], "seed": [r["config"]["seed"] for r in results], "merged": len(results)},
        "window_s": window,
        "requests": _requests(results, window),
        "latency_ms": {k: distribution([s[k] for s in samples if s[k] is not None]) for k in ("ttft", "tpot", "e2e")},
        "tokens": _tokens(results, window),
        "client": _client(results),
        "goodput": None,
        "cost": None,
        "server": None,
        "samples": samples,
    }
    out["latency_ms"]["itl"] = _gaps(results)
    return out


def _named(results: Sequence[dict[str, Any]], key: str) -> list[str]:
    return [f"machine {i}: {text}" for i, r in enumerate(results) for text in r["verdict"][key]]


def _requests(results: Sequence[dict[str, Any]], window: float) -> dict[str, Any]:
    parts = [r["requests"] for r in results]
    errors: Counter[str] = Counter()
    for part in parts:
        errors.update(part["errors"])
    total = {k: sum(p[k] for p in parts) for k in ("measured", "ok", "reused_connections")}
    asked = [p["asked_per_s"] for p in parts]
    return {
        **total,
        "errors": dict(sorted(errors.items())),
        "asked_per_s": None if None in asked else sum(asked),
        "delivered_per_s": sum(p["delivered_per_s"] or 0.0 for p in parts),
        "completed_per_s": total["ok"] / window if window else None,
        "most_concurrent": sum(p["most_concurrent"] for p in parts),
    }


def _tokens(results: Sequence[dict[str, Any]], window: float) -> dict[str, Any]:
    parts = [r["tokens"] for r in results]
    total = {k: sum(p[k] for p in parts) for k in ("input", "cached_input", "output")}
    return {
        **total,
        "cache_hit_share": total["cached_input"] / total["input"] if total["input"] else None,
        "output_per_s": total["output"] / window if window else None,
        "input_per_s": total["input"] / window if window else None,
    }


def _gaps(results: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    parts = [r["latency_ms"]["itl"] for r in results if r["latency_ms"]["itl"]]
    if not parts:
        return None
    whole = Histogram(parts[0]["relative_error"])
    for part in parts:
        other = Histogram(part["relative_error"])
        other.counts = {int(k): v for k, v in part["histogram"].items()}
        whole.merge(other)
    tokens = sum(p["tokens"] for p in parts)
    return {
        "tokens": tokens,
        "mean": sum(p["mean"] * p["tokens"] for p in parts) / tokens,
        "relative_error": whole.error,
        "histogram": {str(k): v for k, v in sorted(whole.counts.items())},
        **{f"p{p}": (whole.percentile(p) or 0.0) * 1e3 for p in PERCENTILES},
    }


def _client(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    parts = [r["client"] for r in results]

    def worst(key: str) -> Any:
        return max((p[key] for p in parts if p[key]), key=lambda d: d["p99"], default=None)

    return {
        "workers": sum(p["workers"] for p in parts),
        "send_lag_ms": worst("send_lag_ms"),
        "loop_lag_ms": worst("loop_lag_ms"),
        "busiest_worker_cpu": max((p["busiest_worker_cpu"] or 0.0 for p in parts), default=None),
    }

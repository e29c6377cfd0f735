"""From samples to the result: every figure a pure function of samples, so an old run can be read again.

`result()` is the JSON document (schema: docs/loadtest.md). `samples` holds one row per measured request, which is what
`compare` resamples."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

import numpy as np

from loadtest.load import Health, Load
from loadtest.metrics import latency, rates
from loadtest.reading import Sample
from loadtest.statistics import Histogram, mean_interval, percentile, percentile_interval
from loadtest.verdict import judge

SCHEMA = "catalejo-loadtest-1"
PERCENTILES = (50, 90, 95, 99)
_MS = 1e3


def measured(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if s.plan.phase == "measure"]


def distribution(values: Sequence[float], scale: float = _MS) -> dict[str, Any] | None:
    """Mean, percentiles with 95 % intervals (None where the sample cannot hold one), extremes. None for no values."""
    if not len(values):
        return None
    scaled = np.asarray(values, dtype=np.float64) * scale
    interval = mean_interval(scaled)
    out: dict[str, Any] = {
        "count": int(scaled.size),
        "mean": float(scaled.mean()),
        "mean_ci95": None if interval is None else [interval.low, interval.high],
        "min": float(scaled.min()),
        "max": float(scaled.max()),
    }
    for p in PERCENTILES:
        bounds = percentile_interval(scaled, p)
        out[f"p{p}"] = percentile(scaled, p)
        out[f"p{p}_ci95"] = None if bounds is None else [bounds.low, bounds.high]
    return out


def token_gaps(samples: Sequence[Sample]) -> tuple[Histogram, float, float]:
    """(histogram of per-token gaps in seconds, weighted by tokens, their mean, and how many tokens)."""
    histogram, total, tokens = Histogram(), 0.0, 0.0
    for s in samples:
        for gap, count in latency.itl(s):
            histogram.add(gap, max(1, round(count)))
            total += gap * count
            tokens += count
    return histogram, total / tokens if tokens else 0.0, tokens


def _column(samples: Sequence[Sample], of: Callable[[Sample], float | None]) -> list[float]:
    return [v for s in samples if (v := of(s)) is not None]


def result(
    samples: Sequence[Sample],
    health: Sequence[Health],
    load: Load,
    *,
    config: dict[str, Any],
    objectives: rates.Objectives,
    gpu_hour_price: float | None = None,
    gpus: int = 8,
    server: dict[str, Any] | None = None,
    interrupted_s: float | None = None,
    broken: Sequence[str] = (),
) -> dict[str, Any]:
    """`interrupted_s`: when the run was cut short, from its start; `broken`: why workers ended early."""
    rows = measured(samples)
    seconds = rates.window_s(rows)
    good = [s for s in rows if s.ok]
    ttft, tpot, e2e = (_column(rows, f) for f in (latency.ttft, latency.tpot, latency.e2e))
    verdict = judge(
        rows,
        health,
        load,
        percentile(ttft, 50),
        interrupted_s=interrupted_s,
        broken=broken,
    )
    loaded_s = load.duration_s if interrupted_s is None else min(load.duration_s, interrupted_s - load.warmup_s)
    gaps, gap_mean, gap_tokens = token_gaps(rows)
    tokens_in, tokens_out, cached = (
        float(sum(getattr(s, name) or 0 for s in good)) for name in ("prompt_tokens", "output_tokens", "cached_tokens")
    )
    meeting = sum(rates.meets(s, objectives) for s in rows)
    lags = [lag for h in health for lag in h.lags]
    return {
        "schema": SCHEMA,
        "verdict": {"valid": verdict.valid, "reasons": verdict.reasons, "warnings": verdict.warnings},
        "config": config,
        "load": asdict(load),
        "host": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "system": platform.system(),
            "catalejo": _version(),
        },
        "window_s": seconds,
        "interrupted_s": interrupted_s,
        "requests": {
            "measured": len(rows),
            "ok": len(good),
            "errors": rates.errors(rows),
            "asked_per_s": load.rate if load.mode == "open" else None,
            "delivered_per_s": rates.rate(len(rows), loaded_s),
            "completed_per_s": rates.rate(len(good), seconds),
            "most_concurrent": rates.most_concurrent(rows),
            "reused_connections": sum(s.reused for s in rows),
        },
        "latency_ms": {
            "ttft": distribution(ttft),
            "tpot": distribution(tpot),
            "e2e": distribution(e2e),
            "itl": None
            if not gap_tokens
            else {
                "tokens": gap_tokens,
                "mean": gap_mean * _MS,
                "relative_error": gaps.error,
                "histogram": {str(k): v for k, v in sorted(gaps.counts.items())},
                **{f"p{p}": (gaps.percentile(p) or 0.0) * _MS for p in PERCENTILES},
            },
        },
        "tokens": {
            "input": tokens_in,
            "cached_input": cached,
            "output": tokens_out,
            "cache_hit_share": cached / tokens_in if tokens_in else None,
            "output_per_s": rates.rate(tokens_out, seconds),
            "input_per_s": rates.rate(tokens_in, seconds),
        },
        "goodput": None
        if not objectives
        else {
            "objectives": asdict(objectives),
            "share": meeting / len(rows) if rows else None,
            "requests_per_s": rates.rate(meeting, seconds),
        },
        "cost": None
        if gpu_hour_price is None
        else {
            "gpu_hour_price": gpu_hour_price,
            "gpus": gpus,
            "per_million_output_tokens": rates.cost_per_million(gpu_hour_price, gpus, seconds, tokens_out),
            "per_million_tokens": rates.cost_per_million(gpu_hour_price, gpus, seconds, tokens_in + tokens_out),
        },
        "client": {
            "workers": len(health),
            "send_lag_ms": distribution([max(0.0, s.send_lag) for s in rows]),
            "loop_lag_ms": distribution(lags),
            "busiest_worker_cpu": max((h.cpu_s / h.wall_s for h in health if h.wall_s), default=None),
        },
        "server": server,
        "samples": [_row(s) for s in rows],
    }


def _row(s: Sample) -> dict[str, Any]:
    return {
        "due": s.due,
        "session": s.plan.session,
        "turn": s.plan.turn,
        "ttft": latency.ttft(s),
        "tpot": latency.tpot(s),
        "e2e": latency.e2e(s),
        "send_lag": s.send_lag,
        "prompt_tokens": s.prompt_tokens,
        "cached_tokens": s.cached_tokens,
        "output_tokens": s.output_tokens,
        "error": s.error,
    }


def _version() -> str:
    try:
        return metadata.version("catalejo")
    except metadata.PackageNotFoundError:
        return "unknown"

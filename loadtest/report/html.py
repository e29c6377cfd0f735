"""One self-contained page: the verdict first, then what was asked, what came, and plots."""

from __future__ import annotations

from html import escape
from typing import Any

from loadtest.report.plot import Series, cumulative, plot
from loadtest.statistics import Histogram

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;color:#1f2328}
.valid{background:#dafbe1}.invalid{background:#ffebe9}.verdict{padding:.6rem 1rem;border-radius:6px}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;border-bottom:1px solid #d1d9e0;text-align:right}
td:first-child,th:first-child{text-align:left}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(460px,1fr));gap:1rem}
figure{margin:0;border:1px solid #d1d9e0;border-radius:6px;padding:.5rem}svg{width:100%;font:11px system-ui,sans-serif}
.grid{stroke:#e5e8eb}.title{text-anchor:middle;font-weight:600;font-size:13px}.x{text-anchor:middle}.y{text-anchor:end}
pre{background:#f6f8fa;padding:1rem;overflow:auto;border-radius:6px}
"""


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " .. ".join(_cell(v) for v in value)
    return f"{value:,.1f}" if isinstance(value, float) else escape(str(value))


def _latency_table(result: dict[str, Any]) -> str:
    keys = ("mean", "mean_ci95", "p50", "p50_ci95", "p90", "p95", "p99", "p99_ci95", "max", "count")
    head = "".join(f"<th>{k.replace('_ci95', ' 95% interval')}</th>" for k in keys)
    rows = []
    for name in ("ttft", "tpot", "itl", "e2e"):
        d = result["latency_ms"][name] or {}
        d = {"count": round(d["tokens"]), **d} if "tokens" in d else d
        cells = "".join(f"<td>{_cell(d.get(k))}</td>" for k in keys)
        rows.append(f"<tr><td>{name}</td>{cells}</tr>")
    return f"<table><tr><th>ms, from due</th>{head}</tr>{''.join(rows)}</table>"


def _facts(result: dict[str, Any]) -> str:
    r, t, c = result["requests"], result["tokens"], result["client"]
    speeds = " / ".join(_cell(r[k]) for k in ("asked_per_s", "delivered_per_s", "completed_per_s"))
    pairs: list[tuple[str, Any]] = [
        ("requests measured / ok", f"{r['measured']} / {r['ok']}"),
        ("errors", r["errors"] or "none"),
        ("asked / delivered / completed per s", speeds),
        ("most concurrent", r["most_concurrent"]),
        ("tokens per s, out / in", f"{_cell(t['output_per_s'])} / {_cell(t['input_per_s'])}"),
        ("cached input", "-" if t["cache_hit_share"] is None else f"{t['cache_hit_share']:.1%}"),
        ("send lag p99, ms", (c["send_lag_ms"] or {}).get("p99")),
        ("client loop lag p99, ms", (c["loop_lag_ms"] or {}).get("p99")),
    ]  # fmt: skip
    if result["goodput"]:
        pairs.append(("goodput, requests per s", result["goodput"]["requests_per_s"]))
    if result["cost"]:
        pairs.append(("cost per million output tokens", result["cost"]["per_million_output_tokens"]))
    return "<table>" + "".join(f"<tr><td>{escape(k)}</td><td>{_cell(v)}</td></tr>" for k, v in pairs) + "</table>"


def _plots(result: dict[str, Any]) -> str:
    samples: list[dict[str, Any]] = result["samples"]
    ok = [s for s in samples if not s["error"]]
    start = min((s["due"] for s in samples), default=0.0)
    ttft = [s["ttft"] * 1e3 for s in ok if s["ttft"] is not None]
    tpot = [s["tpot"] * 1e3 for s in ok if s["tpot"] is not None]
    timeline = [(s["due"] - start, s["ttft"] * 1e3) for s in ok if s["ttft"] is not None]
    running = _running(samples, start)
    hits = [
        (s["due"] - start, 100 * (s["cached_tokens"] or 0) / s["prompt_tokens"])
        for s in ok
        if s["prompt_tokens"] and s["cached_tokens"] is not None
    ]
    figures = [
        plot("TTFT, share of requests at or below", "ms", "%", [("ttft", *cumulative(ttft))] if ttft else []),
        plot("ITL, share of tokens at or below", "ms", "%", _itl(result["latency_ms"]["itl"])),
        plot("TPOT, share of requests at or below", "ms", "%", [("tpot", *cumulative(tpot))] if tpot else []),
        plot("TTFT over the run", "s", "ms", [("ttft", *_split(timeline))] if timeline else [], points=True),
        plot("Requests running", "s", "requests", [("running", *_split(running))] if running else []),
        plot("Goodput: requests with TTFT within", "ms", "%", [("all", *_within(ttft, len(samples)))] if ttft else []),
        plot("Prompt tokens from the cache", "s", "%", [("hit", *_split(hits))] if hits else [], points=True),
    ]  # fmt: skip
    return f'<div class="plots">{"".join(figures)}</div>'


def _within(ttft: list[float], requests: int) -> tuple[list[float], list[float]]:
    """Share of all requests; a failed one meets no bound, so the curve ends below 100 %."""
    values, shares = cumulative(ttft)
    return values, [share * len(ttft) / requests for share in shares]


def _itl(found: dict[str, Any] | None) -> list[Series]:
    if not found:
        return []
    histogram = Histogram(found["relative_error"])
    histogram.counts = {int(index): count for index, count in found["histogram"].items()}
    values, shares = histogram.cumulative()
    return [("itl", [v * 1e3 for v in values], [100 * share for share in shares])]


def _split(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [p[0] for p in pairs], [p[1] for p in pairs]


def _running(samples: list[dict[str, Any]], start: float) -> list[tuple[float, float]]:
    edges: list[tuple[float, int]] = []
    for s in samples:
        if s["e2e"] is not None:
            edges += [(s["due"] - start, 1), (s["due"] - start + s["e2e"], -1)]
    out, running = [], 0
    for at, change in sorted(edges):
        running += change
        out.append((at, float(running)))
    step = max(1, len(out) // 600)
    return out[::step]


def page(result: dict[str, Any]) -> str:
    verdict = result["verdict"]
    word = "VALID" if verdict["valid"] else "INVALID"
    notes = "".join(f"<li>{escape(text)}</li>" for text in [*verdict["reasons"], *verdict["warnings"]])
    config = escape("\n".join(f"{k}: {v}" for k, v in {**result["config"], **result["load"], **result["host"]}.items()))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Catalejo load test</title>'
        f"<style>{_STYLE}</style></head><body><h1>Load test: {escape(str(result['config'].get('scenario', '')))}</h1>"
        f'<div class="verdict {word.lower()}"><b>{word}</b><ul>{notes}</ul></div>'
        f"{_latency_table(result)}{_facts(result)}{_plots(result)}"
        f"<h2>What was run</h2><pre>{config}</pre></body></html>\n"
    )

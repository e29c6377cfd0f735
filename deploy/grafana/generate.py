"""Writes the Grafana dashboards (the chart's files/dashboards/*.json). `--check` fails when they are stale.

A panel is one line below: title, unit, and queries with their legends. `$sel` is the namespace and pod filter."""

# ruff: noqa: E501 - a table: one row a line

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "helm" / "catalejo" / "files" / "dashboards"
SEL = 'namespace=~"$namespace",pod=~"$pod"'

Query = tuple[str, str]
Panel = tuple[str, str, list[Query]]


def quantiles(metric: str, *by: str, label: str = "") -> list[Query]:
    keys = ", ".join((*by, "le"))
    shown = " ".join(f"{{{{{b}}}}}" for b in by)
    return [
        (
            f"histogram_quantile({q}, sum by ({keys}) (rate({metric}_bucket{{{SEL}{label}}}[$__rate_interval])))",
            f"p{round(q * 100)} {shown}".strip(),
        )
        for q in (0.5, 0.95, 0.99)
    ]


def rate(metric: str, *by: str, label: str = "") -> list[Query]:
    legend = " ".join(f"{{{{{b}}}}}" for b in by) or "all"
    group = f" by ({', '.join(by)})" if by else ""
    return [(f"sum{group} (rate({metric}{{{SEL}{label}}}[$__rate_interval]))", legend)]


def gauge(metric: str, *by: str, how: str = "sum", label: str = "") -> list[Query]:
    legend = " ".join(f"{{{{{b}}}}}" for b in by) or "all"
    group = f" by ({', '.join(by)})" if by else ""
    return [(f"{how}{group} ({metric}{{{SEL}{label}}})", legend)]


def share(part: str, whole: str, legend: str) -> list[Query]:
    return [(f"sum (rate({part}[$__rate_interval])) / sum (rate({whole}[$__rate_interval]))", legend)]


API = ',route=~"/v1/.*"'
TOKENS = "catalejo_tokens_total"

TRAFFIC: dict[str, list[Panel]] = {
    "What clients see": [
        ("Requests by status", "reqps", rate("catalejo_http_requests_total", "status", label=API)),
        ("Share of 5xx", "percentunit", share(f'catalejo_http_requests_total{{{SEL}{API},status=~"5.."}}', f"catalejo_http_requests_total{{{SEL}{API}}}", "5xx")),
        ("Errors by code", "reqps", rate("catalejo_errors_total", "error_type")),
        ("Time to first token", "s", quantiles("catalejo_time_to_first_token_seconds")),
        ("Time per output token", "s", quantiles("catalejo_time_per_output_token_seconds")),
        ("Gap between two arrivals of tokens", "s", quantiles("catalejo_inter_token_latency_seconds")),
        ("Whole answer", "s", quantiles("catalejo_generation_duration_seconds")),
        ("Tokens", "short", rate(TOKENS, "gen_ai_token_type")),
        ("Prefix hit rate", "percentunit", share(f'{TOKENS}{{{SEL},gen_ai_token_type="cached_input"}}', f'{TOKENS}{{{SEL},gen_ai_token_type="input"}}', "hit rate")),
        ("Prompt length", "short", quantiles("catalejo_prompt_tokens")),
        ("Generations by outcome", "reqps", rate("catalejo_generations_total", "outcome")),
        ("How answers end", "reqps", rate("catalejo_finishes_total", "gen_ai_response_finish_reason")),
        ("Clients that left", "reqps", rate("catalejo_client_disconnects_total", "phase")),
        ("Another model answered", "reqps", rate("catalejo_model_fallbacks_total", "gen_ai_request_model", "gen_ai_response_model")),
        ("HTTP time by route, p95", "s", quantiles("catalejo_http_request_duration_seconds", "route", label=API)[1:2]),
    ],
    "Admission": [
        ("Waiting", "short", gauge("catalejo_admission_queue_depth", "pod")),
        ("Places held", "short", gauge("catalejo_admission_in_flight", "pod")),
        ("Wait for a place", "s", quantiles("catalejo_admission_queue_seconds")),
        ("Refused", "reqps", rate("catalejo_admission_refused_total", "reason")),
        ("Limits shared through Redis", "short", gauge("catalejo_admission_redis_up", "pod")),
        ("Redis did not answer", "reqps", rate("catalejo_admission_redis_failures_total")),
    ],
    "The gateway itself": [
        ("Requests in flight", "short", gauge("catalejo_http_requests_in_flight", "pod")),
        ("Overhead", "s", quantiles("catalejo_gateway_overhead_seconds")),
        ("Steps, p95", "s", quantiles("catalejo_step_seconds", "step")[1:2]),
        ("Event loop lag", "s", quantiles("catalejo_event_loop_lag_seconds")),
        ("Event loop tasks", "short", gauge("catalejo_event_loop_tasks", "pod")),
        ("Requests in the ledger", "reqps", rate("catalejo_ledger_records_total", "outcome")),
        ("Ledger writes that failed", "ops", rate("catalejo_ledger_failures_total", "pod")),
        ("Spans sent", "ops", rate("catalejo_trace_spans_total", "outcome")),
        ("Ignored unknown fields", "reqps", rate("catalejo_unknown_fields_total", "route")),
        ("Configuration reloads", "short", rate("catalejo_config_reloads_total", "result")),
        ("Last reload was applied", "short", gauge("catalejo_config_last_reload_successful", "pod", how="min")),
        ("Configuration read at", "dateTimeAsIso", [(f"1000 * min by (pod) (catalejo_config_last_reload_success_timestamp_seconds{{{SEL}}})", "{{pod}}")]),
        ("Versions", "short", [(f"count by (version) (catalejo_build_info{{{SEL}}})", "{{version}}")]),
    ],
}  # fmt: skip

ENGINES: dict[str, list[Panel]] = {
    "Engines as gateways see them": [
        ("Up", "short", gauge("catalejo_worker_up", "worker", how="min")),
        ("Breaker open", "short", gauge("catalejo_worker_breaker_open", "worker", how="max")),
        ("Left alone as outliers", "short", rate("catalejo_worker_ejections_total", "worker", "reason")),
        ("Drained by an operator", "short", gauge("catalejo_worker_draining", "worker", how="max")),
        ("Running", "short", gauge("catalejo_in_flight_requests", "worker")),
        ("Why a worker was picked", "reqps", rate("catalejo_routing_decisions_total", "policy", "reason")),
        ("Requests by status", "reqps", rate("catalejo_upstream_requests_total", "worker", "status")),
        ("Sent again", "reqps", rate("catalejo_upstream_retries_total", "worker", "reason")),
        ("Aborted", "reqps", rate("catalejo_upstream_aborts_total", "worker", "reason")),
        ("Failures after the 200", "reqps", rate("catalejo_upstream_failures_total", "worker", "error_type")),
        ("Bytes sent", "Bps", rate("catalejo_upstream_bytes_total", "worker")),
        ("Prefix index by the engine's own events", "short", gauge("catalejo_prefix_index_exact", "worker", how="min")),
        ("KV events", "short", rate("catalejo_kv_events_total", "worker", "outcome")),
        ("Failed looks for engines", "short", rate("catalejo_discovery_failures_total", "source")),
    ],
    "The embedded engine": [
        ("Choices that compute", "short", gauge("catalejo_engine_choices_running", "pod")),
        ("Choices that wait", "short", gauge("catalejo_engine_choices_waiting", "pod")),
        ("KV pages", "short", gauge("catalejo_engine_pages", "state")),
        ("Prompt tokens computed", "short", rate("catalejo_engine_prefill_tokens_total", "pod")),
        ("Output tokens computed", "short", rate("catalejo_engine_decode_tokens_total", "pod")),
        ("Prefix hits", "percentunit", share(f"catalejo_engine_prefix_hit_tokens_total{{{SEL}}}", f"catalejo_engine_prefix_asked_tokens_total{{{SEL}}}", "hit rate")),
        ("Time of a step", "s", quantiles("catalejo_engine_step_seconds")),
        ("Preemptions and evicted pages", "short", rate("catalejo_engine_preemptions_total") + rate("catalejo_engine_evicted_pages_total")),
        ("Finished", "reqps", rate("catalejo_engine_choices_finished_total", "reason")),
        ("Refused", "reqps", rate("catalejo_engine_requests_refused_total", "code")),
        ("Patch rows held", "bytes", gauge("catalejo_engine_media_store_bytes", "pod")),
        ("Segments through the vision tower", "short", rate("catalejo_engine_vision_segments_total", "pod")),
        ("Longest context", "short", gauge("catalejo_engine_context_tokens", "pod", how="max")),
    ],
}  # fmt: skip

MEDIA: dict[str, list[Panel]] = {
    "Pictures and videos": [
        ("Parts", "reqps", rate("catalejo_media_parts_total", "modality", "source")),
        ("Decodes", "reqps", rate("catalejo_media_decodes_total", "modality")),
        ("Cache hits by level", "reqps", rate("catalejo_media_cache_hits_total", "level")),
        ("Misses", "reqps", rate("catalejo_media_cache_misses_total", "modality")),
        ("Time saved by the cache", "s", rate("catalejo_media_saved_seconds_total")),
        ("Refused from memory", "reqps", rate("catalejo_media_cache_negative_hits_total", "modality")),
        ("Steps, p95", "s", quantiles("catalejo_media_seconds", "stage")[1:2]),
        ("Fetches by outcome", "reqps", rate("catalejo_media_fetches_total", "outcome")),
        ("Bytes taken in", "Bps", rate("catalejo_media_bytes_total", "source")),
        ("Waiting for a decoder", "short", gauge("catalejo_media_queued", "modality")),
        ("Encoded bytes in memory", "bytes", gauge("catalejo_media_in_flight_bytes", "pod")),
        ("Rows in memory", "bytes", gauge("catalejo_media_cache_bytes", "pod")),
        ("Entries in memory", "short", gauge("catalejo_media_cache_entries", "pod")),
        ("Dropped for room", "reqps", rate("catalejo_media_cache_evictions_total", "pod")),
        ("Refused by reason", "reqps", rate("catalejo_media_rejected_total", "reason")),
        ("Declared type was wrong", "reqps", rate("catalejo_media_type_mismatches_total")),
        ("Bytes into the file store", "Bps", rate("catalejo_media_stored_bytes_total")),
    ],
}  # fmt: skip

DASHBOARDS = {
    "traffic": ("Catalejo: traffic", TRAFFIC),
    "engines": ("Catalejo: engines", ENGINES),
    "media": ("Catalejo: media", MEDIA),
}


def variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "query": query, "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def dashboard(name: str) -> dict[str, Any]:
    title, rows = DASHBOARDS[name]
    source = {"type": "prometheus", "uid": "${datasource}"}
    probe = "catalejo_engine_choices_running" if name == "engines" else "catalejo_build_info"
    panels: list[dict[str, Any]] = []
    y = 0
    for row, members in rows.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}
        )
        y += 1
        for index, (heading, unit, queries) in enumerate(members):
            panels.append({
                "id": len(panels) + 1, "type": "timeseries", "title": heading, "datasource": source,
                "gridPos": {"x": 8 * (index % 3), "y": y + 8 * (index // 3), "w": 8, "h": 8},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "options": {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi", "sort": "desc"}},
                "targets": [{"refId": chr(65 + i), "expr": q, "legendFormat": label} for i, (q, label) in enumerate(queries)],
            })  # fmt: skip
        y += 8 * -(-len(members) // 3)
    return {
        "uid": f"catalejo-{name}", "title": title, "tags": ["catalejo"], "schemaVersion": 39, "version": 1, "editable": True,
        "time": {"from": "now-3h", "to": "now"}, "refresh": "30s", "timezone": "utc",
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            variable("namespace", "label_values(catalejo_build_info, namespace)"),
            variable("pod", f'label_values({{__name__=~"catalejo_build_info|{probe}",namespace=~"$namespace"}}, pod)'),
        ]},
        "panels": panels,
    }  # fmt: skip


def outputs() -> dict[Path, str]:
    return {
        OUT / f"{name}.json": json.dumps(dashboard(name), indent=1, ensure_ascii=False) + "\n" for name in DASHBOARDS
    }


def main() -> int:
    old = [p for p, text in outputs().items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        for path in old:
            print(f"{path} is stale: run python deploy/grafana/generate.py")  # noqa: T201
        return 1 if old else 0
    for path in old:
        path.write_text(outputs()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

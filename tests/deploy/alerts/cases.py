"""For each alert: series that must make it fire, and series close to them that must not.

A series is promtool's short form, one value a minute: `1+60x30` grows by 60 a minute for 30 minutes."""

# ruff: noqa: E501 - a table

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NS = 'namespace="n",pod="p"'


@dataclass(frozen=True)
class Case:
    fires: dict[str, str]
    quiet: dict[str, str]
    at: str
    labels: dict[str, str]


def histogram(metric: str, labels: str, counts: dict[str, int], minutes: int = 60) -> dict[str, str]:
    """Cumulative buckets that grow by `counts` a minute."""
    out, total = {}, 0
    for le, n in counts.items():
        total += n
        out[f'{metric}_bucket{{{labels},le="{le}"}}'] = f"0+{total}x{minutes}"
    out[f"{metric}_count{{{labels}}}"] = f"0+{total}x{minutes}"
    return out


def http(status: str, per_minute: int, minutes: int = 480, route: str = "/v1/chat/completions") -> dict[str, str]:
    return {f'catalejo_http_requests_total{{{NS},route="{route}",status="{status}"}}': f"0+{per_minute}x{minutes}"}


W = f'{NS},worker="e"'
M = f'{NS},gen_ai_request_model="m"'
N = {"namespace": "n"}
WORKER = {"namespace": "n", "worker": "e"}


def tokens(kind: str, per_minute: int) -> dict[str, str]:
    return {f'catalejo_tokens_total{{{M},gen_ai_token_type="{kind}"}}': f"0+{per_minute}x180"}


CASES: dict[str, Case] = {
    "CatalejoNoGateway": Case({}, {'catalejo_build_info{version="1"}': "1x20"}, "5m", {}),
    "CatalejoNoEngine": Case(
        {f"catalejo_worker_up{{{W}}}": "0x20", f'catalejo_worker_up{{{NS},worker="f"}}': "0x20"},
        {f"catalejo_worker_up{{{W}}}": "0x20", f'catalejo_worker_up{{{NS},worker="f"}}': "1x20"},
        "3m", N,
    ),
    "CatalejoEngineDown": Case({f"catalejo_worker_up{{{W}}}": "0x20"}, {f"catalejo_worker_up{{{W}}}": "0x3 1x17"}, "8m", WORKER),
    "CatalejoEngineHalfSeen": Case(
        {f"catalejo_worker_up{{{W}}}": "0x30", 'catalejo_worker_up{namespace="n",pod="q",worker="e"}': "1x30"},
        {f"catalejo_worker_up{{{W}}}": "1x30", 'catalejo_worker_up{namespace="n",pod="q",worker="e"}': "1x30"},
        "15m", WORKER,
    ),
    "CatalejoBreakerOpen": Case({f"catalejo_worker_breaker_open{{{W}}}": "1x30"}, {f"catalejo_worker_breaker_open{{{W}}}": "1 0x30"}, "15m", WORKER),
    "CatalejoEngineOutlier": Case(
        {f'catalejo_worker_ejections_total{{{W},reason="errors"}}': "0+1x60"}, {f'catalejo_worker_ejections_total{{{W},reason="errors"}}': "0 0 1x60"}, "40m", WORKER
    ),
    "CatalejoDiscoveryFailing": Case(
        {f'catalejo_discovery_failures_total{{{NS},source="dns"}}': "0+2x60"}, {f'catalejo_discovery_failures_total{{{NS},source="dns"}}': "0 4x60"}, "40m",
        {"namespace": "n", "source": "dns"},
    ),
    "CatalejoErrorsFast": Case({**http("200", 900), **http("502", 60)}, {**http("200", 9990), **http("502", 10), **http("503", 9000, route="/ready")}, "90m", N),
    "CatalejoErrorsSlow": Case({**http("200", 9900), **http("502", 100)}, {**http("200", 9990), **http("502", 10), **http("429", 900)}, "420m", N),
    "CatalejoStreamsBroken": Case(
        {f'catalejo_upstream_failures_total{{{W},error_type="x"}}': "0+5x60", f'catalejo_upstream_requests_total{{{W},status="200"}}': "0+100x60"},
        {f'catalejo_upstream_failures_total{{{W},error_type="x"}}': "0x60", f'catalejo_upstream_requests_total{{{W},status="200"}}': "0+100x60"},
        "40m", WORKER,
    ),
    "CatalejoFirstTokenSlow": Case(
        histogram("catalejo_time_to_first_token_seconds", M, {"10.0": 50, "30.0": 50, "+Inf": 0}),
        histogram("catalejo_time_to_first_token_seconds", M, {"10.0": 99, "30.0": 1, "+Inf": 0}), "40m", N,
    ),
    "CatalejoTokensSlow": Case(
        histogram("catalejo_time_per_output_token_seconds", M, {"0.1": 50, "0.25": 50, "+Inf": 0}),
        histogram("catalejo_time_per_output_token_seconds", M, {"0.1": 99, "0.25": 1, "+Inf": 0}), "40m", N,
    ),
    "CatalejoGatewayOverheadHigh": Case(
        histogram("catalejo_gateway_overhead_seconds", NS, {"0.25": 50, "0.5": 50, "+Inf": 0}),
        histogram("catalejo_gateway_overhead_seconds", NS, {"0.25": 99, "0.5": 1, "+Inf": 0}), "40m", N,
    ),
    "CatalejoEventLoopStalled": Case(
        histogram("catalejo_event_loop_lag_seconds", NS, {"0.25": 1000, "0.5": 50, "+Inf": 0}),
        histogram("catalejo_event_loop_lag_seconds", NS, {"0.25": 1190, "0.5": 10, "+Inf": 0}), "40m", {"namespace": "n", "pod": "p"},
    ),
    "CatalejoQueueGrowing": Case({f"catalejo_admission_queue_depth{{{NS}}}": "30x40"}, {f"catalejo_admission_queue_depth{{{NS}}}": "30 0 30 0 30 0 30 0 30 0 30 0 30 0 30 0 30 0 30"}, "15m", N),
    "CatalejoRefusing": Case(
        {**http("200", 100, 60), f'catalejo_admission_refused_total{{{NS},reason="queue_full"}}': "0+10x60"},
        {**http("200", 100, 60), f'catalejo_admission_refused_total{{{NS},reason="queue_full"}}': "0+1x60"},
        "40m", {**N, "reason": "queue_full"},
    ),
    "CatalejoRetrying": Case(
        {f'catalejo_upstream_retries_total{{{W},reason="overloaded"}}': "0+10x60", f'catalejo_upstream_requests_total{{{W},status="200"}}': "0+100x60"},
        {f'catalejo_upstream_retries_total{{{W},reason="missing_media"}}': "0+50x60", f'catalejo_upstream_requests_total{{{W},status="200"}}': "0+100x60"},
        "40m", WORKER,
    ),
    "CatalejoPrefixHitsLow": Case({**tokens("input", 100000), **tokens("cached_input", 1000)}, {**tokens("input", 100000), **tokens("cached_input", 90000)}, "120m", N),
    "CatalejoEnginePreempting": Case(
        {f"catalejo_engine_preemptions_total{{{NS}}}": "0+60x60"}, {f"catalejo_engine_preemptions_total{{{NS}}}": "0+1x60"}, "40m", {"namespace": "n", "pod": "p"},
    ),
    "CatalejoClientsLeaving": Case(
        {**http("200", 100, 90), f'catalejo_client_disconnects_total{{{NS},phase="decode"}}': "0+40x90"},
        {**http("200", 100, 90), f'catalejo_client_disconnects_total{{{NS},phase="decode"}}': "0+4x90"}, "60m", N,
    ),
    "CatalejoLedgerFailing": Case(
        {f"catalejo_ledger_failures_total{{{NS}}}": "0+60x30"}, {f"catalejo_ledger_failures_total{{{NS}}}": "0+1x30"}, "15m", {"namespace": "n", "pod": "p"},
    ),
    "CatalejoMediaFetchFailing": Case(
        {f'catalejo_media_fetches_total{{{NS},outcome="timeout"}}': "0+60x60", f'catalejo_media_fetches_total{{{NS},outcome="ok"}}': "0+20x60"},
        {f'catalejo_media_fetches_total{{{NS},outcome="refused"}}': "0+60x60", f'catalejo_media_fetches_total{{{NS},outcome="ok"}}': "0+20x60"},
        "40m", N,
    ),
    "CatalejoMediaQueueing": Case(
        {f'catalejo_media_queued{{{NS},modality="image"}}': "40x40"}, {f'catalejo_media_queued{{{NS},modality="image"}}': "5x40"}, "15m", {**N, "modality": "image"},
    ),
    "CatalejoMediaTypeMismatch": Case(
        {f"catalejo_media_type_mismatches_total{{{NS}}}": "0+50x180", f'catalejo_media_parts_total{{{NS},modality="image",source="data"}}': "0+100x180"},
        {f"catalejo_media_type_mismatches_total{{{NS}}}": "0+5x180", f'catalejo_media_parts_total{{{NS},modality="image",source="data"}}': "0+100x180"},
        "150m", N,
    ),
    "CatalejoReloadRefused": Case(
        {f"catalejo_config_last_reload_successful{{{NS}}}": "1x5 0x30"},
        {f"catalejo_config_last_reload_successful{{{NS}}}": "1x5 0x3 1x30"},
        "20m",
        {"namespace": "n", "pod": "p"},
    ),
}  # fmt: skip


def promtool_file(name: str, severity: str, rules: str) -> dict[str, Any]:
    """A promtool unit test with two worlds: one where the alert fires, one where it does not."""
    case = CASES[name]
    query = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
    labels = {"alertname": name, "alertstate": "firing", "severity": severity, **case.labels}
    sample = "ALERTS{" + ", ".join(f'{k}="{v}"' for k, v in labels.items()) + "}"

    def world(series: dict[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": case.at, "exp_samples": expected}],
        }

    tests = [world(case.fires, [{"labels": sample, "value": 1}]), world(case.quiet, [])]
    return {"rule_files": [rules], "evaluation_interval": "1m", "tests": tests}

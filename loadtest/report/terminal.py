"""The result as a person reads it in a terminal, and the live line while a run goes on."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _interval(bounds: list[float] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]:,.1f} .. {bounds[1]:,.1f}"


def show(result: dict[str, Any], console: Console) -> None:
    verdict, requests, tokens = result["verdict"], result["requests"], result["tokens"]
    colour = "green" if verdict["valid"] else "red"
    console.print(f"[bold {colour}]{'VALID' if verdict['valid'] else 'INVALID'}[/]")
    for reason in verdict["reasons"]:
        console.print(f"  [red]because[/] {reason}")
    for warning in verdict["warnings"]:
        console.print(f"  [yellow]note[/] {warning}")
    table = Table(title="latency, ms, from the moment a request was due")
    for column in ("", "mean", "p50", "p50 95% interval", "p90", "p99", "p99 95% interval", "n"):
        table.add_column(column, justify="left" if not column else "right")
    for name in ("ttft", "tpot", "e2e"):
        d = result["latency_ms"][name]
        if d is None:
            table.add_row(name, *["-"] * 7)
            continue
        table.add_row(
            name,
            *(_number(d[k]) for k in ("mean", "p50")),
            _interval(d["p50_ci95"]),
            *(_number(d[k]) for k in ("p90", "p99")),
            _interval(d["p99_ci95"]),
            f"{d['count']:,}",
        )
    itl = result["latency_ms"]["itl"]
    if itl:
        table.add_row(
            "itl (per token)", *(_number(itl[k]) for k in ("mean", "p50")), "", *(_number(itl[k]) for k in ("p90", "p99")),
            "", f"{itl['tokens']:,.0f}",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"requests: {requests['measured']} measured, {requests['ok']} ok, errors {requests['errors'] or 'none'}; "
        f"asked {_number(requests['asked_per_s'], 2)}/s, delivered {_number(requests['delivered_per_s'], 2)}/s, "
        f"at most {requests['most_concurrent']} at once"
    )
    hit = tokens["cache_hit_share"]
    console.print(
        f"tokens/s: {_number(tokens['output_per_s'])} out, {_number(tokens['input_per_s'])} in; "
        f"cached input {'-' if hit is None else f'{hit:.1%}'}"
    )
    if result["goodput"]:
        g = result["goodput"]
        console.print(f"goodput: {_number(g['requests_per_s'], 2)} requests/s, {g['share']:.1%} met every objective")
    if result["cost"]:
        c = result["cost"]
        console.print(
            f"cost: {_number(c['per_million_output_tokens'], 2)} per million output tokens, "
            f"{_number(c['per_million_tokens'], 2)} per million tokens, at {c['gpu_hour_price']} x {c['gpus']} GPUs"
        )
    client = result["client"]
    lag = client["send_lag_ms"]
    console.print(
        f"client: send lag p99 {_number(lag and lag['p99'])} ms, loop lag p99 "
        f"{_number(client['loop_lag_ms'] and client['loop_lag_ms']['p99'])} ms, "
        f"busiest worker {_number((client['busiest_worker_cpu'] or 0) * 100, 0)} % of a core"
    )

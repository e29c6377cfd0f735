"""The commands that push load: run, sweep, replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loadtest.cli.finish import check_outputs, finish
from loadtest.cli.options import Client, Output, Server, Slo, Span, fail, finite, takes

if TYPE_CHECKING:
    from loadtest.load import Load
    from loadtest.running import Options
    from loadtest.scenario import Scenario

ScenarioName = Annotated[str, typer.Option("--scenario", "-s", help="a shipped scenario's name or a YAML file")]


def _scenario(name: str) -> Scenario:
    from loadtest.scenario import ScenarioError, load

    try:
        return load(name)
    except ScenarioError as e:
        fail(str(e))


def _options(server: Server, client: Client, scenario: str, load: Load, **more: Any) -> Options:
    from loadtest.running import Options

    return Options(server.target(), _scenario(scenario), load, client.workers, client.seed, **more)


def _run(options: Options, client: Client) -> dict[str, Any]:
    from loadtest.live import Live
    from loadtest.running import ServerError, run

    if not client.quiet:
        typer.echo("measuring the server's tokens per word with two requests ...", err=True)
    try:
        with Live(options.load, enabled=not client.quiet, every_s=client.progress_every) as live:
            return run(options, live.update)
    except (ServerError, RuntimeError) as e:
        fail(str(e))
    except KeyboardInterrupt:
        fail("interrupted before there was anything to report")


@takes(server=Server, span=Span, client=Client, slo=Slo, output=Output)
def run(
    server: Server,
    span: Span,
    client: Client,
    slo: Slo,
    output: Output,
    scenario: ScenarioName = "chat",
    rate: Annotated[
        float | None, typer.Option(help="open loop: requests per second", min=1e-6, callback=finite)
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="closed loop: users", min=1)] = None,
    arrival: Annotated[Literal["poisson", "gamma", "constant"], typer.Option(help="of an open loop")] = "poisson",
    burstiness: Annotated[
        float, typer.Option(help="gamma shape; below 1 is burstier than Poisson", min=1e-3, callback=finite)
    ] = 1.0,
    cooldown: Annotated[
        float, typer.Option(help="seconds after, loaded but not counted", min=0, callback=finite)
    ] = 0.0,
    ramp: Annotated[float, typer.Option(help="seconds to reach the full load", min=0, callback=finite)] = 0.0,
    gpu_hour_price: Annotated[
        float | None, typer.Option(help="price of one GPU hour; adds cost", min=0, callback=finite)
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that the price is for")] = 8,
) -> None:
    """Push one load and report. Give --rate (open loop) or --concurrency (closed loop)."""
    from loadtest.load import Load

    if (rate is None) == (concurrency is None):
        fail("give either --rate (open loop) or --concurrency (closed loop)")
    check_outputs(output)
    load = Load(
        mode="open" if rate is not None else "closed",
        arrival=arrival,
        rate=rate or 1.0,
        burstiness=burstiness,
        concurrency=concurrency or 1,
        ramp_s=ramp,
        warmup_s=span.warmup,
        duration_s=span.duration,
        cooldown_s=cooldown,
        timeout_s=client.timeout,
    )
    options = _options(
        server, client, scenario, load, objectives=slo.objectives(), gpu_hour_price=gpu_hour_price, gpus=gpus
    )
    finish(_run(options, client), output)


@takes(server=Server, span=Span, client=Client, slo=Slo)
def sweep(
    low: Annotated[float, typer.Argument(help="smallest load to try", min=1e-6, callback=finite)],
    high: Annotated[float, typer.Argument(help="largest load to try", min=1e-6, callback=finite)],
    server: Server,
    span: Span,
    client: Client,
    slo: Slo,
    scenario: ScenarioName = "chat",
    by: Annotated[Literal["rate", "concurrency"], typer.Option(help="what LOW and HIGH count")] = "rate",
    share: Annotated[
        float, typer.Option(help="share of requests that must meet every objective", min=0, max=1, callback=finite)
    ] = 0.95,
    precision: Annotated[float, typer.Option(help="relative", min=1e-3, callback=finite)] = 0.1,
) -> None:
    """Find the largest load that meets the objectives, confirmed by a second run."""
    from dataclasses import replace

    from loadtest.load import Load
    from loadtest.sweep import search

    objectives = slo.objectives()
    if not objectives:
        fail("a sweep needs an objective: --ttft-ms, --tpot-ms or --e2e-ms")
    base = Load(warmup_s=span.warmup, duration_s=span.duration, timeout_s=client.timeout)

    def attempt(at: float, salt: int) -> tuple[bool, str]:
        open_loop = by == "rate"
        amount: dict[str, Any] = {"rate": at} if open_loop else {"concurrency": max(1, int(at))}
        load = replace(base, mode="open" if open_loop else "closed", **amount)
        seeded = replace(client, seed=salt)
        result = _run(_options(server, seeded, scenario, load, objectives=objectives), client)
        if result["interrupted_s"] is not None:
            fail(f"interrupted at {by} {at:g}; nothing is known of it")
        met, verdict = result["goodput"]["share"] or 0.0, result["verdict"]
        passed = verdict["valid"] and met >= share
        why = f"{met:.1%} met the objectives" if verdict["valid"] else "INVALID: " + "; ".join(verdict["reasons"])
        typer.echo(f"{by} {at:g}: {'pass' if passed else 'fail'} ({why})")
        return passed, why

    try:
        found = search(attempt, low=low, high=high, precision=precision, whole=by == "concurrency", seed=client.seed)
    except ValueError as e:
        fail(str(e))
    if found.load is None:
        typer.echo(f"no load from {low:g} up meets the objectives")
        raise typer.Exit(3)
    typer.echo(
        f"largest {by} that meets the objectives, confirmed: {found.load:g}{'' if found.bounded else ' (or more)'}"
    )


@takes(server=Server, span=Span, client=Client, slo=Slo, output=Output)
def replay(
    trace: Annotated[Path, typer.Argument(help="Mooncake trace or our access log")],
    server: Server,
    span: Span,
    client: Client,
    slo: Slo,
    output: Output,
    speed: Annotated[float, typer.Option(help="2 plays the trace twice as fast", min=1e-3, callback=finite)] = 1.0,
) -> None:
    """Send recorded traffic again at its own times (Mooncake trace or our access log)."""
    from loadtest.load import Load
    from loadtest.replay import TraceError, read_trace

    check_outputs(output)
    try:
        entries = read_trace(trace)
    except TraceError as e:
        fail(str(e))
    until = span.warmup + span.duration
    due = [e.at_s / speed for e in entries if span.warmup <= e.at_s / speed < until]
    if not due:
        fail(f"the trace has no request between {span.warmup:g} and {until:g} s at speed {speed:g}")
    load = Load(rate=len(due) / span.duration, warmup_s=span.warmup, duration_s=span.duration, timeout_s=client.timeout)
    options = _options(server, client, "chat", load, objectives=slo.objectives(), trace=str(trace), speed=speed)
    finish(_run(options, client), output)

"""`catalejo loadtest ...`: run, sweep, replay, compare, report, scenarios. Exit code: 0 VALID, 3 INVALID, 2 bad use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from loadtest.executor import Load
    from loadtest.running import Options

app = typer.Typer(no_args_is_help=True, help="Load tests that tell the truth.", pretty_exceptions_enable=False)

Url = Annotated[str, typer.Option("--url", help="server, without /v1")]
Model = Annotated[str, typer.Option("--model", help="model name sent in requests")]
ApiKey = Annotated[str | None, typer.Option("--api-key", envvar="CATALEJO_API_KEY", help="bearer token")]
ScenarioName = Annotated[str, typer.Option("--scenario", "-s", help="a shipped scenario's name or a YAML file")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="client processes")]
Seed = Annotated[int, typer.Option("--seed")]
Out = Annotated[list[Path] | None, typer.Option("--out", "-o", help=".json, .csv or .html; may be given several times")]
Slo = Annotated[float | None, typer.Option(help="objective in milliseconds")]
Metrics = Annotated[str | None, typer.Option("--metrics-url", help="server's /metrics; default: URL/metrics")]


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


def _objectives(ttft_ms: float | None, tpot_ms: float | None, e2e_ms: float | None) -> Any:
    from loadtest.metrics.rates import Objectives

    return Objectives(*(None if v is None else v / 1e3 for v in (ttft_ms, tpot_ms, e2e_ms)))


def _options(
    url: str, model: str, api_key: str | None, scenario: str, load: Load, workers: int, seed: int, **more: Any
) -> Options:
    from loadtest.running import Options, Target
    from loadtest.scenario import ScenarioError
    from loadtest.scenario import load as load_scenario

    try:
        parsed = load_scenario(scenario)
    except ScenarioError as e:
        _fail(str(e))
    metrics_url = more.pop("metrics_url", None) or url.rstrip("/") + "/metrics"
    return Options(Target(url, model, api_key, metrics_url), parsed, load, workers, seed, **more)


def _run(options: Options, quiet: bool = False) -> dict[str, Any]:
    from loadtest.live import Live
    from loadtest.running import ServerError, run

    try:
        with Live(options.load, enabled=not quiet) as live:
            return run(options, live.update)
    except (ServerError, RuntimeError) as e:
        _fail(str(e))


def _finish(result: dict[str, Any], out: list[Path] | None) -> None:
    from rich.console import Console

    from loadtest.report import files, terminal

    console = Console()
    terminal.show(result, console if console.is_terminal else Console(width=130))
    for path in out or ():
        try:
            files.write(result, path)
        except files.ResultError as e:
            _fail(str(e))
        typer.echo(f"wrote {path}")
    if not result["verdict"]["valid"]:
        raise typer.Exit(3)


@app.command()
def run(
    url: Url = "http://127.0.0.1:8000",
    model: Model = "catalejo",
    scenario: ScenarioName = "chat",
    rate: Annotated[float | None, typer.Option(help="open loop: requests per second", min=1e-6)] = None,
    concurrency: Annotated[int | None, typer.Option(help="closed loop: users", min=1)] = None,
    arrival: Annotated[str, typer.Option(help="poisson, gamma or constant")] = "poisson",
    burstiness: Annotated[float, typer.Option(help="gamma shape; below 1 is burstier than Poisson")] = 1.0,
    duration: Annotated[float, typer.Option(help="measured seconds", min=0.1)] = 60.0,
    warmup: Annotated[float, typer.Option(help="seconds before, not counted", min=0)] = 10.0,
    cooldown: Annotated[float, typer.Option(help="seconds after, loaded but not counted", min=0)] = 0.0,
    ramp: Annotated[float, typer.Option(help="seconds to reach the full load", min=0)] = 0.0,
    timeout: Annotated[float, typer.Option(help="seconds for one request", min=0.1)] = 600.0,
    api_key: ApiKey = None,
    metrics_url: Metrics = None,
    workers: Workers = 1,
    seed: Seed = 0,
    ttft_ms: Slo = None,
    tpot_ms: Slo = None,
    e2e_ms: Slo = None,
    gpu_hour_price: Annotated[float | None, typer.Option(help="price of one GPU hour; adds cost")] = None,
    gpus: Annotated[int, typer.Option(min=1)] = 8,
    out: Out = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no live line")] = False,
) -> None:
    """Push one load and report. Give --rate (open loop) or --concurrency (closed loop)."""
    from loadtest.executor import Load

    if (rate is None) == (concurrency is None):
        _fail("give either --rate (open loop) or --concurrency (closed loop)")
    if arrival not in ("poisson", "gamma", "constant"):
        _fail(f"--arrival {arrival}: one of poisson, gamma, constant")
    load = Load(
        mode="open" if rate is not None else "closed",
        arrival=arrival,  # type: ignore[arg-type]
        rate=rate or 1.0,
        burstiness=burstiness,
        concurrency=concurrency or 1,
        ramp_s=ramp,
        warmup_s=warmup,
        duration_s=duration,
        cooldown_s=cooldown,
        timeout_s=timeout,
    )
    options = _options(
        url, model, api_key, scenario, load, workers, seed,
        metrics_url=metrics_url, objectives=_objectives(ttft_ms, tpot_ms, e2e_ms), gpu_hour_price=gpu_hour_price, gpus=gpus,
    )  # fmt: skip
    _finish(_run(options, quiet), out)


@app.command()
def sweep(
    low: Annotated[float, typer.Option(help="smallest load to try")],
    high: Annotated[float, typer.Option(help="largest load to try")],
    url: Url = "http://127.0.0.1:8000",
    model: Model = "catalejo",
    scenario: ScenarioName = "chat",
    by: Annotated[str, typer.Option(help="rate or concurrency")] = "rate",
    share: Annotated[float, typer.Option(help="share of requests that must meet every objective")] = 0.95,
    precision: Annotated[float, typer.Option(help="relative")] = 0.1,
    duration: float = 60.0,
    warmup: float = 10.0,
    api_key: ApiKey = None,
    workers: Workers = 1,
    seed: Seed = 0,
    ttft_ms: Slo = None,
    tpot_ms: Slo = None,
    e2e_ms: Slo = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
) -> None:
    """Find the largest load that meets the objectives, confirmed by a second run."""
    from loadtest.executor import Load
    from loadtest.sweep import search

    objectives = _objectives(ttft_ms, tpot_ms, e2e_ms)
    if not objectives:
        _fail("a sweep needs an objective: --ttft-ms, --tpot-ms or --e2e-ms")
    if by not in ("rate", "concurrency"):
        _fail(f"--by {by}: rate or concurrency")

    def attempt(at: float, salt: int) -> tuple[bool, str]:
        mode = "open" if by == "rate" else "closed"
        load = Load(mode=mode, rate=at, concurrency=max(1, int(at)), warmup_s=warmup, duration_s=duration)  # type: ignore[arg-type]
        result = _run(_options(url, model, api_key, scenario, load, workers, salt, objectives=objectives), quiet)
        met, verdict = result["goodput"]["share"] or 0.0, result["verdict"]
        passed = verdict["valid"] and met >= share
        why = f"{met:.1%} met the objectives" if verdict["valid"] else "INVALID: " + "; ".join(verdict["reasons"])
        typer.echo(f"{by} {at:g}: {'pass' if passed else 'fail'} ({why})")
        return passed, why

    try:
        found = search(attempt, low=low, high=high, precision=precision, whole=by == "concurrency", seed=seed)
    except ValueError as e:
        _fail(str(e))
    if found.load is None:
        typer.echo(f"no load from {low:g} up meets the objectives")
        raise typer.Exit(3)
    typer.echo(
        f"largest {by} that meets the objectives, confirmed: {found.load:g}{'' if found.bounded else ' (or more)'}"
    )


@app.command()
def replay(
    trace: Path,
    url: Url = "http://127.0.0.1:8000",
    model: Model = "catalejo",
    speed: Annotated[float, typer.Option(help="2 plays the trace twice as fast", min=1e-3)] = 1.0,
    duration: Annotated[float, typer.Option(help="measured seconds of the run", min=0.1)] = 60.0,
    warmup: Annotated[float, typer.Option(min=0)] = 10.0,
    timeout: Annotated[float, typer.Option(min=0.1)] = 600.0,
    api_key: ApiKey = None,
    metrics_url: Metrics = None,
    workers: Workers = 1,
    seed: Seed = 0,
    ttft_ms: Slo = None,
    tpot_ms: Slo = None,
    e2e_ms: Slo = None,
    out: Out = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
) -> None:
    """Send recorded traffic again at its own times (Mooncake trace or our access log)."""
    from loadtest.executor import Load
    from loadtest.replay import TraceError, read_trace

    try:
        entries = read_trace(trace)
    except TraceError as e:
        _fail(str(e))
    until = warmup + duration
    due = [e.at_s / speed for e in entries if warmup <= e.at_s / speed < until]
    if not due:
        _fail(f"the trace has no request between {warmup:g} and {until:g} s at speed {speed:g}")
    load = Load(rate=len(due) / duration, warmup_s=warmup, duration_s=duration, timeout_s=timeout)
    options = _options(
        url, model, api_key, "chat", load, workers, seed,
        metrics_url=metrics_url, objectives=_objectives(ttft_ms, tpot_ms, e2e_ms), trace=str(trace), speed=speed,
    )  # fmt: skip
    _finish(_run(options, quiet), out)


@app.command()
def compare(a: Path, b: Path, seed: Seed = 0) -> None:
    """Compare two JSON results: effect sizes with intervals, or "no difference shown"."""
    from rich.console import Console
    from rich.table import Table

    from loadtest import compare as comparing
    from loadtest.report import files

    try:
        left, right = files.read(a), files.read(b)
    except files.ResultError as e:
        _fail(str(e))
    objections = comparing.objections(left, right)
    for objection in objections:
        typer.echo(f"warning: {objection}", err=True)
    table = Table(title="ms; interval of B - A, 95 %")
    for column in ("figure", "A", "B", "B / A", "interval", "verdict"):
        table.add_column(column)
    for d in comparing.compare(left, right, seed=seed):
        ratio = "-" if d.ratio is None else f"{d.ratio:.3f}"
        table.add_row(
            d.figure, f"{d.a:,.1f}", f"{d.b:,.1f}", ratio, f"{d.interval.low:,.1f} .. {d.interval.high:,.1f}", d.words
        )
    Console().print(table)
    if objections:
        raise typer.Exit(3)


@app.command()
def report(source: Path, out: Out = None) -> None:
    """Show a JSON result again, or write it as .html or .csv."""
    from loadtest.report import files

    try:
        result = files.read(source)
    except files.ResultError as e:
        _fail(str(e))
    _finish(result, out)


@app.command()
def merge(sources: list[Path], out: Out = None) -> None:
    """Join the JSON results of several machines that ran one test together (each with its own --seed)."""
    from loadtest import merge as merging
    from loadtest.report import files

    try:
        result = merging.merge([files.read(path) for path in sources])
    except (files.ResultError, merging.MergeError) as e:
        _fail(str(e))
    _finish(result, out)


@app.command()
def scenarios() -> None:
    """List the shipped scenarios."""
    from loadtest.scenario import load as load_scenario
    from loadtest.scenario import shipped

    for name in sorted(shipped()):
        typer.echo(f"{name:14} {load_scenario(name).description}")


def main() -> None:
    app()


if __name__ == "__main__":
    main()

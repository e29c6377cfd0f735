"""The options that commands share, each written once. `@takes(Group, ...)` gives a command the options of dataclasses; it is
called with one filled instance of each."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from loadtest.metrics.rates import Objectives
    from loadtest.running import Target


def fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


def finite(value: float | None) -> float | None:
    """click's ranges let nan and inf through."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("a finite number is needed")
    return value


Out = Annotated[list[Path] | None, typer.Option("--out", "-o", help=".json, .csv, .html or .prom; may be repeated")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="of everything that is drawn")]
_MS = typer.Option(help="objective, milliseconds", min=0, callback=finite)


@dataclass(frozen=True)
class Server:
    url: Annotated[str, typer.Option(help="server, with or without /v1")] = "http://127.0.0.1:8000"
    model: Annotated[str, typer.Option(help="model name sent in requests")] = "catalejo"
    api_key: Annotated[str | None, typer.Option(envvar="CATALEJO_API_KEY", help="bearer token")] = None
    metrics_url: Annotated[str | None, typer.Option(help="server's /metrics; default: URL/metrics")] = None

    def target(self) -> Target:
        from loadtest.running import Target
        from loadtest.wire_client import Pool

        url = self.url.rstrip("/").removesuffix("/v1")
        target = Target(url, self.model, self.api_key, self.metrics_url or url + "/metrics")
        try:
            Pool(url, target.headers).request("/", None)
        except ValueError as e:
            fail(f"--url or --api-key: {e}")
        return target


@dataclass(frozen=True)
class Client:
    workers: Annotated[int, typer.Option(min=1, help="client processes")] = 1
    seed: Seed = 0
    timeout: Annotated[float, typer.Option(min=0.1, callback=finite, help="seconds for one request")] = 600.0
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no live line")] = False
    progress_every: Annotated[
        float, typer.Option(min=0.5, callback=finite, help="seconds between lines where there is no terminal")
    ] = 10.0


@dataclass(frozen=True)
class Span:
    duration: Annotated[float, typer.Option(min=0.1, callback=finite, help="measured seconds")] = 60.0
    warmup: Annotated[float, typer.Option(min=0, callback=finite, help="seconds before, not counted")] = 10.0


@dataclass(frozen=True)
class Slo:
    ttft_ms: Annotated[float | None, _MS] = None
    tpot_ms: Annotated[float | None, _MS] = None
    e2e_ms: Annotated[float | None, _MS] = None

    def objectives(self) -> Objectives:
        from loadtest.metrics.rates import Objectives

        return Objectives(*(None if v is None else v / 1e3 for v in (self.ttft_ms, self.tpot_ms, self.e2e_ms)))


@dataclass(frozen=True)
class Output:
    out: Out = None
    push_gateway: Annotated[str | None, typer.Option(help="URL of a Prometheus Pushgateway to tell the result")] = None


def takes(**groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`@takes(server=Server)`: the command's parameter `server` is filled from the options that are Server's fields."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        shown = [p for p in own.values() if p.name not in groups]
        for group in groups.values():
            hints = inspect.get_annotations(group, eval_str=True)
            shown += [
                inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
                for f in fields(group)
            ]
        kinds = {p.name: p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown}

        @functools.wraps(command)
        def called(**given: Any) -> None:
            filled = {
                name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()
            }
            command(**given, **filled)

        called.__signature__ = inspect.Signature(list(kinds.values()))  # type: ignore[attr-defined]
        called.__annotations__ = {name: p.annotation for name, p in kinds.items()}
        return called

    return wrap

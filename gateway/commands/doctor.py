"""`catalejo doctor`: one line per check, each fault with its remedy. Exit code 1 when something is wrong."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import aiohttp
from pydantic import ValidationError

from gateway.commands.paths import check_checkpoint, default_checkpoint
from gateway.commands.serve import masked
from gateway.config import ConfigError, Settings, load
from gateway.metrics import Metrics
from gateway.processes.sockets import ListenError, bind, close, tls_context
from gateway.routing.connect import engine_client
from gateway.routing.settings import EngineEndpoint
from gateway.upstream.settings import UpstreamSettings
from gateway.upstream.tls import TlsContexts

Check = tuple[str, bool, str]
HEALTH_TIMEOUT_S: Final = 5.0


def run(model: Path | None, engines: list[str] | None, config: Path | None) -> int:
    path = model or default_checkpoint()
    sections: list[Callable[[], Iterator[Check]]] = [
        _machine,
        _packages,
        lambda: _checkpoint(path),
        lambda: _configuration(config, model, path),
        lambda: _named_engines(engines or []),
    ]
    good = True
    for section in sections:
        for name, fine, text in section():
            print(f"{'ok  ' if fine else 'FAIL'}  {name}: {text}")  # noqa: T201
            good = good and fine
    return 0 if good else 1


def _machine() -> Iterator[Check]:
    yield "python", sys.version_info >= (3, 11), sys.version.split()[0] + " (3.11 or newer is needed)"
    yield "cpus", True, str(len(os.sched_getaffinity(0)))


def _packages() -> Iterator[Check]:
    for name in ("preproc_rs", "uvloop", "httptools"):
        try:
            import_module(name)
            yield name, True, "importable"
        except ImportError as e:
            yield name, False, f"{e}; install the distribution again: pip install ."
    for name in ("torch", "transformers", "xgrammar"):
        try:
            yield name, True, version(name)
        except PackageNotFoundError:
            yield name, True, "not installed; only the local engine needs it: pip install 'catalejo[engine-local]'"


def _checkpoint(path: Path) -> Iterator[Check]:
    if problem := check_checkpoint(path):
        yield "checkpoint", False, problem
        return
    from gateway.prompt import Checkpoint

    try:
        loaded = Checkpoint.load(path)
        text = f"{path}: {loaded.vocab_size} tokens in the vocabulary, {loaded.max_position_embeddings} positions"
        yield "checkpoint", True, text
    except (OSError, ValueError, KeyError) as e:
        yield "checkpoint", False, str(e)


def _configuration(config: Path | None, model: Path | None, path: Path) -> Iterator[Check]:
    try:
        settings = load(config, model_path=path if model or config is None else None)
        yield "configuration", True, f"serves {', '.join(settings.public_names)} on {settings.host}:{settings.port}"
    except ConfigError as e:
        yield "configuration", False, str(e)
        return
    for served in settings.served if config is not None else ():
        problem = check_checkpoint(served.model_path)
        yield f"model {served.served_name}", problem is None, problem or str(served.model_path)
        token = served.engine_token.get_secret_value() if served.engine_token else None
        yield from _engines(served.engines, token, settings.upstream)
    if config is not None:
        yield from _listening(settings)
        yield from _redis(settings)


def _listening(settings: Settings) -> Iterator[Check]:
    operations = settings.operations
    ports = [(settings.host, settings.port)]
    if operations.port is not None:
        ports.append((operations.host, operations.port))
    for host, port in ports:
        try:
            close(bind(host, port))
            yield f"port {port}", True, f"free on {host}"
        except ListenError as e:
            yield f"port {port}", False, f"{e}; is a gateway running already?"
    if settings.tls.enabled:
        try:
            tls_context(settings.tls)
            yield "tls", True, f"{settings.tls.certificate} can be used"
        except ListenError as e:
            yield "tls", False, str(e)


def _redis(settings: Settings) -> Iterator[Check]:
    if settings.admission.redis_url is None:
        return
    from gateway.admission.redis_limits import problem_of

    problem = asyncio.run(problem_of(settings.admission))
    yield "redis", problem is None, problem or "answers; limits are shared through it"


def _named_engines(urls: list[str]) -> Iterator[Check]:
    """Of the command line."""
    for url in urls:
        try:
            endpoint = EngineEndpoint(url=url)
        except ValidationError as e:
            yield masked(url), False, e.errors()[0]["msg"].removeprefix("Value error, ")
        else:
            yield from _engines([endpoint], None, UpstreamSettings())


def _engines(endpoints: Sequence[EngineEndpoint], token: str | None, upstream: UpstreamSettings) -> Iterator[Check]:
    for endpoint in endpoints:
        problem = asyncio.run(_problem(endpoint, token, upstream))
        yield masked(endpoint.url), problem is None, problem or "/health answered 200"


async def _problem(endpoint: EngineEndpoint, token: str | None, upstream: UpstreamSettings) -> str | None:
    """Asked as the gateway asks."""
    async with aiohttp.ClientSession() as session:
        try:
            client = engine_client("engine", endpoint, token, session, upstream, Metrics(), TlsContexts())
        except ValueError as e:
            return str(e)
        status = await client.status(HEALTH_TIMEOUT_S)
        client.close()
    return None if status.healthy else f"no good answer from /health ({status.detail}); is the engine running?"

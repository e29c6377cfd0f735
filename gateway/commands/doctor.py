"""`catalejo doctor`: one line per check, each fault with its remedy. Exit code 1 when something is wrong."""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gateway.commands.paths import check_checkpoint, default_checkpoint
from gateway.commands.serve import masked
from gateway.config import ConfigError, Settings, load
from gateway.processes.sockets import ListenError, bind, close, tls_context

Check = tuple[str, bool, str]


def run(model: Path | None, engines: list[str] | None, config: Path | None) -> int:
    path = model or default_checkpoint()
    sections: list[Callable[[], Iterator[Check]]] = [
        _machine,
        _packages,
        lambda: _checkpoint(path),
        lambda: _configuration(config, model, path),
        lambda: _engines(engines or []),
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
        yield from _engines([e.url for e in served.engines])
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


def _engines(urls: list[str]) -> Iterator[Check]:
    for url in urls:
        shown = masked(url)
        try:
            with urllib.request.urlopen(url.rstrip("/") + "/health", timeout=5) as response:  # noqa: S310
                yield shown, response.status == 200, f"/health answered {response.status}"
        except (OSError, urllib.error.URLError, ValueError) as e:
            yield shown, False, f"no answer from /health ({e}); is the engine running?"

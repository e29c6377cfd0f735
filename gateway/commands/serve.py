"""`catalejo gateway`."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.commands.paths import check_checkpoint
from gateway.config import ConfigError, Settings, load
from gateway.observability.logging import configure
from gateway.observability.tracing import missing
from gateway.processes.client import HubClient
from gateway.processes.server_tls import ServerTls, server_loop
from gateway.processes.sockets import ListenError, bind, close, port_of
from gateway.threads import start_default_threads

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger("catalejo.gateway")
USER_IN_URL: Final = re.compile(r"^([a-z][a-z0-9+.-]*://)[^/?#\s]*@")
THREAD_SWITCH_S: Final = 0.001
"""A thread that renders a long prompt gives the event loop its turn after this long (Python's own: 5 ms)."""


def gateway(
    config: Path | None,
    engines: list[str] | None,
    model: Path | None,
    host: str | None,
    port: int | None,
    model_name: str | None,
    workers: int | None = None,
    *,
    print_only: bool = False,
) -> int:
    given: dict[str, Any] = {
        "engines": [{"url": url} for url in engines] if engines else None,
        "model_path": str(model) if model else None,
        "host": host,
        "port": port,
        "model_name": model_name,
        "workers": workers,
    }
    overrides = {k: v for k, v in given.items() if v is not None}
    try:
        settings = load(config, **overrides)
    except ConfigError as e:
        print(f"catalejo: wrong configuration\n{e}", file=sys.stderr)  # noqa: T201
        return 2
    if print_only:
        print(as_yaml(settings), end="")  # noqa: T201
        return 0
    for one in settings.served:
        if problem := check_checkpoint(one.model_path):
            print(f"catalejo: {one.served_name}: {problem}", file=sys.stderr)  # noqa: T201
            return 2
    if problem := missing(settings.observability.tracing):
        print(f"catalejo: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    configure(settings.observability)
    try:
        if settings.workers > 1:
            from gateway.processes.supervisor import Supervisor

            return Supervisor(settings, config, overrides).run()
        return serve(settings, reread=partial(load, config, **overrides))
    except ListenError as e:
        print(f"catalejo: {e}", file=sys.stderr)  # noqa: T201
        return 1


def as_yaml(settings: Settings) -> str:
    """A file that `--config` takes; secrets are shown as stars, those in URLs too."""
    import yaml

    return yaml.safe_dump(masked(settings.model_dump(mode="json")), sort_keys=False)


def masked(value: Any) -> Any:
    """Plain values, with stars for the user and password of URLs."""
    if isinstance(value, dict):
        return {k: masked(v) for k, v in value.items()}
    if isinstance(value, list):
        return [masked(v) for v in value]
    return USER_IN_URL.sub(r"\1**********@", value) if isinstance(value, str) else value


def serve(settings: Settings, hub: HubClient | None = None, *, reread: Callable[[], Settings] | None = None) -> int:
    """One gateway process; with a `hub` one of several on the port. `reread`: the configuration once more, for SIGHUP.
    Raises ListenError."""
    import uvicorn

    from gateway.app import create_app
    from gateway.server.protocol import protocol

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can be heeded: it must not end a gateway that is starting
    sys.setswitchinterval(THREAD_SWITCH_S)
    several = hub is not None
    tls = ServerTls(settings.tls) if settings.tls.enabled else None
    listening = bind(settings.host, settings.port, shared=several)
    operations = settings.operations
    try:
        second = None if operations.port is None else bind(operations.host, operations.port, shared=several)
    except ListenError:
        close(listening)
        raise
    config = uvicorn.Config(
        create_app(settings, hub=hub, operations_sockets=second, reread=reread, tls=tls),
        http=protocol(settings.server_header_timeout_s),
        ws="none",
        ssl_context_factory=None if tls is None else lambda config, default: tls.context,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.server_keep_alive_s,
        timeout_graceful_shutdown=int(settings.shutdown_grace_s) or None,
        backlog=4096,
    )
    if not several:
        log_start(settings, port_of(listening), None if second is None else port_of(second))
    server = _server(config, server_loop(settings.server_header_timeout_s))
    try:
        server.run(listening)
    except KeyboardInterrupt:
        return 0
    return 0 if server.started else 1


def _server(config: uvicorn.Config, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        def run(self, sockets: list[socket.socket] | None = None) -> None:
            with asyncio.Runner(loop_factory=make_loop) as runner:
                runner.run(self.serve(sockets))

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """What is there by then stays: the collector need not look at a hundred thousand objects again and again, each time
            with all streams standing still."""
            start_default_threads()
            await super().startup(sockets)
            gc.collect()
            gc.freeze()

    return Server(config)


def log_start(settings: Settings, port: int, operations_port: int | None) -> None:
    log.info("gateway listens on %s port %d", settings.host, port)
    if operations_port is not None:
        log.info("operations: %s port %d", settings.operations.host, operations_port)
    for model in settings.served:
        urls = ", ".join(masked(e.url) for e in model.engines)
        if model.discovery.source != "static":
            urls = ", ".join(filter(None, (urls, f"those of discovery ({model.discovery.source})")))
        log.info("serves %s; engines: %s", ", ".join(model.names), urls or "none configured")

"""`catalejo gateway`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Final

from gateway.config import ConfigError, Settings, load

log = logging.getLogger("catalejo.gateway")
THREAD_SWITCH_S: Final = 0.001
"""A thread that renders a long prompt gives the event loop its turn after this long (Python's own: 5 ms)."""


def gateway(
    config: Path | None,
    engines: list[str] | None,
    model: Path | None,
    host: str | None,
    port: int | None,
    model_name: str | None,
    *,
    print_only: bool = False,
) -> int:
    endpoints: list[dict[str, Any]] | None = [{"url": url} for url in engines] if engines else None
    try:
        settings = load(config, engines=endpoints, model_path=model, host=host, port=port, model_name=model_name)
    except ConfigError as e:
        print(f"catalejo: wrong configuration\n{e}", file=sys.stderr)  # noqa: T201
        return 2
    if print_only:
        print(as_yaml(settings), end="")  # noqa: T201
        return 0
    return serve(settings)


def as_yaml(settings: Settings) -> str:
    """A file that `--config` takes; secrets are shown as stars."""
    import yaml

    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def serve(settings: Settings) -> int:
    import uvicorn

    from gateway.app import create_app
    from gateway.commands.paths import check_checkpoint
    from gateway.http_protocol import protocol
    from gateway.observability.logging import configure
    from gateway.observability.tracing import missing

    if problem := check_checkpoint(settings.model_path) or missing(settings.observability.tracing):
        print(f"catalejo: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    configure(settings.observability)
    sys.setswitchinterval(THREAD_SWITCH_S)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=protocol(settings.server_header_timeout_s),
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.server_keep_alive_s,
        timeout_graceful_shutdown=int(settings.shutdown_grace_s) or None,
        backlog=4096,
    )
    engines = ", ".join(e.url for e in settings.engines) or "none configured"
    log.info(
        "gateway for %s listens on %s port %d; engines: %s",
        settings.served_model,
        settings.host,
        settings.port,
        engines,
    )
    server = uvicorn.Server(config)
    try:
        server.run()
    except KeyboardInterrupt:
        return 0
    return 0 if server.started else 1

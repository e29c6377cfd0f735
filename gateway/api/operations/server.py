"""The second port: what operators and their tools ask, apart from what clients may reach. No keys; the host it listens on,
and the network's rules, say who may."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.datastructures import State
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.context import RequestScope
from gateway.api.head import as_get
from gateway.api.operations import debug
from gateway.api.responses import install_error_handlers
from gateway.config import Settings
from gateway.metrics import Metrics
from gateway.observability.observer import Observer
from gateway.processes.sockets import bind
from gateway.server.protocol import protocol


def operations_app(
    settings: Settings, metrics: Metrics, observer: Observer, routers: list[APIRouter], state: State
) -> ASGIApp:
    """`state`: the main application's, whose services the handlers use."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state = state
    install_error_handlers(app)
    for router in routers:
        app.include_router(router)
    if settings.operations.debug:
        app.include_router(debug.router)
    scoped = RequestScope(app, metrics, settings.observability.access_log, observer)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await scoped(as_get(scope), receive, send)

    return served


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the main server hears them


@asynccontextmanager
async def operations_server(
    settings: Settings, app: ASGIApp, sockets: list[socket.socket] | None
) -> AsyncIterator[list[socket.socket]]:
    """Serves on `sockets`, or on `operations.port`, until left: a draining gateway is still watched. Raises ListenError."""
    options = settings.operations
    sockets = sockets if sockets is not None else bind(options.host, options.port or 0)
    config = uvicorn.Config(
        app,
        http=protocol(settings.server_header_timeout_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets), name="operations port")
    up = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait({task, up}, return_when=asyncio.FIRST_COMPLETED)
        yield sockets
    finally:
        up.cancel()
        server.should_exit = True
        await task

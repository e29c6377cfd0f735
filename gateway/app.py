"""The ASGI application: wiring only. Order of the layers, outermost first: CORS, RequestScope (ids, log, last resort),
Authentication, the framework's error handlers, the routes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import version
from gateway.admission.admission import Admission
from gateway.admission.middleware import Authentication
from gateway.api.admin.router import router as admin_router
from gateway.api.chat.router import router as chat_router
from gateway.api.completions.router import router as completions_router
from gateway.api.context import RequestScope, context_of
from gateway.api.docs_page import router as docs_router
from gateway.api.fast_path import FastPath
from gateway.api.files.router import create_router as create_files_router
from gateway.api.head import as_get
from gateway.api.health.router import metrics_router
from gateway.api.health.router import router as health_router
from gateway.api.models.router import router as models_router
from gateway.api.openapi import add_schemas
from gateway.api.operations.server import operations_app, operations_server
from gateway.api.responses import install_error_handlers
from gateway.api.tokenize.router import router as tokenize_router
from gateway.config import Settings
from gateway.metrics import Metrics
from gateway.observability.loop_lag import watch_loop
from gateway.observability.observer import Observer
from gateway.processes.client import HubClient
from gateway.processes.routing import share_load, share_routing
from gateway.processes.server_tls import ServerTls
from gateway.reload import Reloader
from gateway.services import services_of, start

LIMIT_HEADERS: Final = ("limit", "remaining", "reset")


def create_app(
    settings: Settings,
    *,
    hub: HubClient | None = None,
    operations_sockets: list[socket.socket] | None = None,
    reread: Callable[[], Settings] | None = None,
    tls: ServerTls | None = None,
) -> FastAPI:
    """Everything heavy (checkpoint, media workers, engine pool) starts with the application's lifespan. `hub`: of the
    supervisor, when this is one of several processes; `operations_sockets`: the second port, when it is bound already;
    `reread`: reads the configuration again, for SIGHUP; `tls`: of the listening port, whose certificate is read again then."""
    metrics = Metrics()
    metrics.build.info({"version": version()})
    if hub is None:
        admission = Admission(settings.admission, metrics)
    else:
        admission = Admission(settings.admission, metrics, rates=hub, places=hub.places, model_gate=hub.places_of)
    observer = Observer(settings.observability, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            await running.enter_async_context(observer.running())
            if hub is not None:
                await hub.connect()
                running.callback(hub.close)
            await running.enter_async_context(admission)
            services = await start(settings, metrics, admission)
            running.push_async_callback(services.close)
            app.state.services = services
            if hub is not None:
                services.hub = hub
                share_routing(hub, services.routers)
                await running.enter_async_context(share_load(hub, services.routers))
            if settings.operations.port is not None:
                routers = [health_router, metrics_router, admin_router]
                operations = operations_app(settings, metrics, observer, routers, app.state)
                app.state.operations_sockets = await running.enter_async_context(
                    operations_server(settings, operations, operations_sockets)
                )
            await running.enter_async_context(watch_loop(metrics))
            if reread is not None:
                await running.enter_async_context(Reloader(reread, services, tls).on_signal())
            if hub is not None:
                hub.serving()
            yield

    app = _Application(title="Catalejo", version=version(), lifespan=lifespan, docs_url=None, redoc_url=None)
    install_error_handlers(app)
    layers = _layers(settings, metrics, admission, observer)
    for layer, options in reversed(layers):
        app.add_middleware(layer, **options)
    own = [chat_router, completions_router, tokenize_router, models_router, health_router]
    if settings.operations.port is None:
        own.append(metrics_router)
    for router in own:
        app.include_router(router)
    if settings.operations.port is None:
        app.include_router(admin_router)
    app.include_router(docs_router)
    app.include_router(create_files_router(lambda r: services_of(r).media.files, lambda r: context_of(r).tenant))

    def wrap(inner: ASGIApp) -> ASGIApp:
        for layer, options in reversed(layers):
            inner = layer(inner, **options)
        return inner

    app.fast_path = FastPath(own, wrap)
    return app


def _layers(
    settings: Settings, metrics: Metrics, admission: Admission, observer: Observer
) -> list[tuple[Any, dict[str, Any]]]:
    """Outermost first."""
    layers: list[tuple[Any, dict[str, Any]]] = []
    if settings.cors_origins:  # around everything, or a browser could not read a refusal
        limits = [f"x-ratelimit-{what}-{kind}" for kind in ("requests", "tokens") for what in LIMIT_HEADERS]
        cors = {
            "allow_origins": settings.cors_origins,
            "allow_methods": ["*"],
            "allow_headers": ["*"],
            "expose_headers": ["x-request-id", "retry-after", "openai-processing-ms", "x-catalejo-model", *limits],
        }
        layers.append((CORSMiddleware, cors))
    log = settings.observability.access_log
    layers.append((RequestScope, {"metrics": metrics, "access_log": log, "observer": observer}))
    layers.append((Authentication, {"admission": admission, "protect_metrics": settings.admission.protect_metrics}))
    return layers


class _Application(FastAPI):
    fast_path: FastPath | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.fast_path is not None and self.fast_path.takes(scope):
            scope["app"] = self
            await self.fast_path(scope, receive, send)
        elif scope.get("method") == "HEAD":
            await self(as_get(scope), receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = add_schemas(super().openapi())
        return self.openapi_schema

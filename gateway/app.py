"""The ASGI application: wiring only. Order of the layers, outermost first: RequestScope (ids, log, last resort), CORS,
Authentication, the framework's error handlers, the routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import version
from gateway.admission.admission import Admission
from gateway.admission.middleware import Authentication
from gateway.api.chat.router import router as chat_router
from gateway.api.completions.router import router as completions_router
from gateway.api.context import RequestScope, context_of
from gateway.api.docs_page import router as docs_router
from gateway.api.fast_path import FastPath
from gateway.api.files.router import create_router as create_files_router
from gateway.api.health.router import router as health_router
from gateway.api.models.router import router as models_router
from gateway.api.openapi import add_schemas
from gateway.api.responses import install_error_handlers
from gateway.api.tokenize.router import router as tokenize_router
from gateway.config import Settings
from gateway.metrics import Metrics
from gateway.observability.loop_lag import watch_loop
from gateway.observability.observer import Observer
from gateway.services import services_of, start


def create_app(settings: Settings) -> FastAPI:
    """Everything heavy (checkpoint, media workers, engine pool) starts with the application's lifespan."""
    metrics = Metrics()
    metrics.build.info({"version": version()})
    admission = Admission(settings.admission, metrics)
    observer = Observer(settings.observability, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with observer.running():
            services = await start(settings, metrics, admission)
            app.state.services = services
            try:
                async with watch_loop(metrics):
                    yield
            finally:
                await services.close()

    app = _Application(title="Catalejo", version=version(), lifespan=lifespan, docs_url=None, redoc_url=None)
    install_error_handlers(app)
    layers = _layers(settings, metrics, admission, observer)
    for layer, options in reversed(layers):
        app.add_middleware(layer, **options)
    own = (chat_router, completions_router, tokenize_router, models_router, health_router)
    for router in own:
        app.include_router(router)
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
    log = settings.observability.access_log
    layers: list[tuple[Any, dict[str, Any]]] = [
        (RequestScope, {"metrics": metrics, "access_log": log, "observer": observer})
    ]
    if settings.cors_origins:
        cors = {
            "allow_origins": settings.cors_origins,
            "allow_methods": ["*"],
            "allow_headers": ["*"],
            "expose_headers": ["x-request-id", "retry-after"],
        }
        layers.append((CORSMiddleware, cors))
    layers.append((Authentication, {"admission": admission}))
    return layers


class _Application(FastAPI):
    fast_path: FastPath | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.fast_path is not None and self.fast_path.takes(scope):
            scope["app"] = self
            await self.fast_path(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = add_schemas(super().openapi())
        return self.openapi_schema

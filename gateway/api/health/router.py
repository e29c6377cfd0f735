"""GET /health (the process answers), /ready (a request would be served), /metrics (on the second port, if there is one)."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from gateway import version
from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.routing.worker import Worker
from gateway.services import services_of

router = APIRouter(route_class=RawRoute, tags=["operations"])
metrics_router = APIRouter(route_class=RawRoute, tags=["operations"])


@router.get("/health", **documented(None, "The process is alive"))
async def health(request: Request) -> Response:
    return json_response({"status": "ok"})


def _state(worker: Worker) -> str:
    return "draining" if worker.draining else "up" if worker.usable() else "down"


@router.get("/ready", **documented(None, "The checkpoints are loaded and at least one model has a healthy engine"))
async def ready(request: Request) -> Response:
    services = services_of(request)
    models = services.catalogue.models.values()
    body = {
        "status": "ready" if services.ready else "not_ready",
        "models": {m.name: "ready" if m.router.ready else "not_ready" for m in models},
        "engines": {w.name: _state(w) for m in models for w in m.router.workers},
        "version": version(),
    }
    return json_response(body, 200 if services.ready else 503, None if services.ready else {"retry-after": "1"})


@metrics_router.get("/metrics", **documented(None, "Prometheus metrics"))
async def metrics(request: Request) -> Response:
    own = services_of(request).metrics
    body = await asyncio.to_thread(own.render) if own.over_processes else own.render()
    return Response(body, media_type=CONTENT_TYPE_LATEST)

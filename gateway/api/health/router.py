"""GET /health (the process answers), /ready (a request would be served), /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from gateway import version
from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.services import services_of

router = APIRouter(route_class=RawRoute, tags=["operations"])


@router.get("/health", **documented(None, "The process is alive"))
async def health(request: Request) -> Response:
    return json_response({"status": "ok"})


@router.get("/ready", **documented(None, "At least one engine is healthy and the checkpoint is loaded"))
async def ready(request: Request) -> Response:
    services = services_of(request)
    engines = {
        w.name: "draining" if w.draining else "up" if w.usable() else "down"
        for r in services.routers
        for w in r.workers
    }
    body = {"status": "ready" if services.ready else "not_ready", "engines": engines, "version": version()}
    return json_response(body, 200 if services.ready else 503, None if services.ready else {"retry-after": "1"})


@router.get("/metrics", **documented(None, "Prometheus metrics"))
async def metrics(request: Request) -> Response:
    return Response(services_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)

"""GET /v1/models and /v1/models/{id}; ids may hold slashes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.services import services_of

router = APIRouter(route_class=RawRoute, tags=["models"])


@router.get("/v1/models", **documented(None, "The models served here"))
async def models(request: Request) -> Response:
    services = services_of(request)
    context = services.pipeline.context_length
    data = [services.names.entry(name, context) for name in services.names.names]
    return json_response({"object": "list", "data": data})


@router.get("/v1/models/{model_id:path}", **documented(None, "One model", path_parameters=("model_id",)))
async def model(request: Request) -> Response:
    services = services_of(request)
    name: str = request.path_params["model_id"]
    services.names.check(name)
    return json_response(services.names.entry(name, services.pipeline.context_length))

"""GET /v1/models and /v1/models/{id}; ids may hold slashes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.context import context_of
from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.services import services_of

router = APIRouter(route_class=RawRoute, tags=["models"])


@router.get("/v1/models", **documented(None, "The models this key may use"))
async def models(request: Request) -> Response:
    catalogue = services_of(request).catalogue
    data = [catalogue.entry(target) for target in catalogue.targets(context_of(request).tenant)]
    return json_response({"object": "list", "data": data})


@router.get("/v1/models/{model_id:path}", **documented(None, "One model", path_parameters=("model_id",)))
async def model(request: Request) -> Response:
    catalogue = services_of(request).catalogue
    target = catalogue.target(request.path_params["model_id"], context_of(request).tenant)
    return json_response(catalogue.entry(target))

"""GET /admin/engines, POST and DELETE /admin/engines/{name}/drain. Keys with the scope `admin` only (admission/middleware.py).

A drain holds for this process until it is undone or the process ends. It is done when `in_flight` is 0."""

from __future__ import annotations

import logging

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.admin.serving import describe, engines
from gateway.api.context import context_of
from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.errors import ApiError
from gateway.services import services_of

router = APIRouter(route_class=RawRoute, prefix="/admin", tags=["administration"])
log = logging.getLogger("catalejo.admin")


@router.get("/engines", **documented(None, "Engines: state, breaker, what runs there, size of the prefix index"))
async def list_engines(request: Request) -> Response:
    return json_response({"engines": engines(services_of(request).routers)})


# Names of engines may hold slashes (model/engine).
@router.post(
    "/engines/{name:path}/drain", **documented(None, "No new requests for an engine", path_parameters=("name",))
)
async def drain(request: Request) -> Response:
    return _drain(request, True)


@router.delete("/engines/{name:path}/drain", **documented(None, "New requests again", path_parameters=("name",)))
async def undo_drain(request: Request) -> Response:
    return _drain(request, False)


def _drain(request: Request, draining: bool) -> Response:
    name = request.path_params["name"]
    for routing in services_of(request).routers:
        if routing.drain(name, draining):
            log.info(
                "engine %s: %s, by %s", name, "draining" if draining else "in use again", context_of(request).tenant
            )
            return json_response(next(describe(routing, w) for w in routing.workers if w.name == name))
    raise ApiError("not_found", f"no engine is called {name[:200]!r}; GET /admin/engines lists them", param="name")

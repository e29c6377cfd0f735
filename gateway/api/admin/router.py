"""GET /admin/engines, POST and DELETE /admin/engines/{name}/drain. Keys with the scope `admin` only (admission/middleware.py).

A drain holds for this command (all its processes) until it is undone or the command ends. It is done when `in_flight` is 0,
which counts the requests of all processes; the other numbers are those of the process that answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.admin.serving import describe, engines
from gateway.api.context import context_of
from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.errors import ApiError
from gateway.processes.routing import tell_drain
from gateway.services import Services, services_of

router = APIRouter(route_class=RawRoute, prefix="/admin", tags=["administration"])
log = logging.getLogger("catalejo.admin")


@router.get("/engines", **documented(None, "Engines: state, breaker, what runs there, size of the prefix index"))
async def list_engines(request: Request) -> Response:
    services = services_of(request)
    return json_response({"engines": await _everywhere(services, engines(services.routers))})


async def _everywhere(services: Services, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`in_flight` of all processes of this command, or a drain would seem done while another's streams run."""
    if services.metrics.over_processes:
        counts = await asyncio.to_thread(services.metrics.in_flight_everywhere)
        for engine in found:
            engine["in_flight"] = counts.get(engine["name"], engine["in_flight"])
    return found


# Names of engines may hold slashes (model/engine).
@router.post(
    "/engines/{name:path}/drain", **documented(None, "No new requests for an engine", path_parameters=("name",))
)
async def drain(request: Request) -> Response:
    return await _drain(request, True)


@router.delete("/engines/{name:path}/drain", **documented(None, "New requests again", path_parameters=("name",)))
async def undo_drain(request: Request) -> Response:
    return await _drain(request, False)


async def _drain(request: Request, draining: bool) -> Response:
    name, services = request.path_params["name"], services_of(request)
    for routing in services.routers:
        if routing.drain(name, draining):
            if services.hub is not None:
                tell_drain(services.hub, name, draining)
            log.info(
                "engine %s: %s, by %s", name, "draining" if draining else "in use again", context_of(request).tenant
            )
            worker = next(w for w in routing.workers if w.name == name)
            [told] = await _everywhere(services, [describe(routing, worker)])
            return json_response(told)
    raise ApiError("not_found", f"no engine is called {name[:200]!r}; GET /admin/engines lists them", param="name")

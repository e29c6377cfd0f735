"""The busiest endpoints without the framework's layers: same middleware of ours, same handlers, same answers.

A request whose method and path are in the table goes through RequestScope and Authentication straight to its handler;
all others (wrong methods, docs, files, ...) through the whole application. About a seventh of a small request's CPU."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.responses import error_response
from gateway.errors import ApiError

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Route:
    """What RequestScope reads for its labels."""

    path: str


class FastPath:
    def __init__(self, routers: Iterable[APIRouter], wrap: Callable[[ASGIApp], ASGIApp]) -> None:
        self._handlers: dict[tuple[str, str], tuple[_Route, Handler]] = {}
        for router in routers:
            for route in router.routes:
                if isinstance(route, APIRoute) and "{" not in route.path:
                    for method in route.methods or ():
                        self._handlers[method, route.path] = _Route(route.path), route.endpoint
        self._app = wrap(self._handle)

    def takes(self, scope: Scope) -> bool:
        return scope["type"] == "http" and (scope["method"], scope["path"]) in self._handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"], _ = self._handlers[scope["method"], scope["path"]]  # also of those that no handler will see
        await self._app(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, handler = self._handlers[scope["method"], scope["path"]]
        try:
            response = await handler(Request(scope, receive, send))
        except ApiError as e:
            scope["catalejo"].error_code = e.code
            response = error_response(e)
        await response(scope, receive, send)

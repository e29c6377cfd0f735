"""Authentication on every route but the open ones; the tenant goes into the request's context."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admission.admission import Admission

OPEN_PATHS: Final = frozenset({"/", "/health", "/ready", "/metrics", "/docs", "/openapi.json", "/redoc"})


class Authentication:
    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS":
            names = (b"authorization", b"x-api-key")
            headers = {k.decode(): v.decode("latin-1") for k, v in scope["headers"] if k in names}
            scope["catalejo"].tenant = self._admission.authenticate(headers)
        await self._app(scope, receive, send)

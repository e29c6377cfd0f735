"""Authentication on every route but the open ones, and what the key may do; tenant and scopes go into the request's context."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admission.admission import Admission
from gateway.errors import ApiError

OPEN_PATHS: Final = frozenset({"/", "/health", "/ready", "/metrics", "/docs", "/openapi.json", "/redoc"})


def scope_of(path: str) -> str:
    """The scope a path needs."""
    if path == "/admin" or path.startswith("/admin/"):
        return "admin"
    return "metrics" if path == "/metrics" else "inference"


class Authentication:
    def __init__(self, app: ASGIApp, admission: Admission, *, protect_metrics: bool = True) -> None:
        self._app = app
        self._admission = admission
        self._open = OPEN_PATHS - {"/metrics"} if protect_metrics else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open and scope["method"] != "OPTIONS":
            names = (b"authorization", b"x-api-key")
            headers = {k.decode(): v.decode("latin-1") for k, v in scope["headers"] if k in names}
            context = scope["catalejo"]
            context.tenant = self._admission.authenticate(headers)
            context.scopes = self._admission.scopes(context.tenant)
            needed = scope_of(scope["path"])
            if needed not in context.scopes:
                raise ApiError(
                    "insufficient_permissions",
                    f"this needs an API key with the scope {needed!r} (admission.tenants[].scopes)",
                )
        await self._app(scope, receive, send)

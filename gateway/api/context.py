"""What a handler knows about its request besides the body, and the pure ASGI middleware that sets it up.

`RequestScope` is the outermost layer: it gives every response an x-request-id, counts and times it, writes the access
log, and turns whatever still escapes into an OpenAI body if the response has not begun."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.responses import error_response
from gateway.errors import ApiError
from gateway.metrics import Metrics, child

log = logging.getLogger("catalejo.access")
failures = logging.getLogger("catalejo.failure")
CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
QUIET_ROUTES: Final = frozenset({"/health", "/ready", "/metrics"})


@dataclass(slots=True)
class RequestContext:
    request_id: str
    traceparent: str | None = None
    began: float = field(default_factory=perf_counter)
    tenant: str = "default"
    scopes: frozenset[str] = frozenset()
    """What the request's key may do; gateway/admission/keys.py."""
    error_code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with the response, whatever it becomes, unless the response has the header itself."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Goes to the access log: model, token counts, phases. Never contents, URLs or keys."""


def context_of(request: Request) -> RequestContext:
    context: RequestContext = request.scope["catalejo"]
    return context


class RequestScope:
    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = scope["catalejo"] = _context(scope)
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                elapsed_ms = (perf_counter() - context.began) * 1000
                present = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in context.headers.items() if k.encode() not in present]
                message["headers"] = [
                    *message["headers"],
                    *extra,
                    (b"x-request-id", context.request_id.encode()),
                    (b"openai-processing-ms", b"%d" % elapsed_ms),
                ]
            await send(message)

        self._metrics.http_in_flight.inc()
        try:
            await self._app(scope, receive, send_with_headers)
        except ApiError as e:
            context.error_code = e.code
            if status:
                raise
            await error_response(e)(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server's grace is over
            context.error_code = "shutting_down"
            if not status:
                failure = ApiError("shutting_down", "the server is being stopped; try again")
                await error_response(failure)(scope, receive, send_with_headers)
            raise
        except Exception:
            failures.exception("unhandled failure", extra={"request_id": context.request_id})
            context.error_code = "internal_error"
            if status:
                raise
            failure = ApiError("internal_error", "the gateway failed; the request id names this failure in its log")
            await error_response(failure)(scope, receive, send_with_headers)
        finally:
            self._metrics.http_in_flight.dec()
            self._finish(scope, context, status)

    def _finish(self, scope: Scope, context: RequestContext, status: int) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        elapsed = perf_counter() - context.began
        child(self._metrics.http_requests, route, str(status or 499)).inc()
        child(self._metrics.http_duration, route).observe(elapsed)
        if context.error_code:
            child(self._metrics.errors, route, context.error_code).inc()
        if self._access_log and route not in QUIET_ROUTES:
            log.info(
                "request",
                extra={
                    "request_id": context.request_id,
                    "method": scope["method"],
                    "route": route,
                    "status": status or 499,
                    "duration_ms": round(elapsed * 1000, 2),
                    "tenant": context.tenant,
                    "error_code": context.error_code,
                    **context.notes,
                },
            )


def _context(scope: Scope) -> RequestContext:
    request_id, traceparent = "", None
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            request_id = given if CLIENT_ID.fullmatch(given) else ""
        elif name == b"traceparent":
            given = value.decode("latin-1")
            traceparent = given if TRACEPARENT.fullmatch(given) else None
    return RequestContext(request_id or f"req_{secrets.token_hex(16)}", traceparent)

"""What a handler knows about its request besides the body, and the pure ASGI middleware that sets it up.

`RequestScope` is the outermost layer: it gives every response an x-request-id, counts and times it, writes the access
log, the usage ledger and the trace's end, and turns whatever still escapes into an OpenAI body if the response has not
begun."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter, time
from types import TracebackType
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.responses import error_response
from gateway.errors import ApiError
from gateway.metrics import Metrics, child
from gateway.observability.observer import Observer
from gateway.observability.tracing import NO_TRACE, RequestTrace
from gateway.observability.usage import RequestUsage, UsageRecord, outcome_of

log = logging.getLogger("catalejo.access")
failures = logging.getLogger("catalejo.failure")
CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
QUIET_ROUTES: Final = frozenset({"/health", "/ready", "/metrics"})


@dataclass(slots=True)
class RequestContext:
    request_id: str
    traceparent: str | None = None
    began: float = field(default_factory=perf_counter)
    until: float | None = None
    """Loop time at which engines must have finished; set when the request is first sent to one."""
    tenant: str = "default"
    scopes: frozenset[str] = frozenset()
    """What the request's key may do; gateway/admission/keys.py."""
    error_code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with the response, whatever it becomes, unless the response has the header itself."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Goes to the access log: model, timings, phases. Never contents, URLs or keys."""
    usage: RequestUsage | None = None
    """Set for requests that ask a model for an answer; the others are not in the ledger."""
    trace: RequestTrace = NO_TRACE

    def step(self, name: str) -> AbstractContextManager[Any]:
        """A step of the request: a span of its trace, and `NAME_ms` in the access log (several of one name add up)."""
        return _Step(self, name)

    @property
    def too_late(self) -> bool:
        """Its time at engines is over: it is tried nowhere else."""
        return self.until is not None and asyncio.get_running_loop().time() >= self.until


class _Step:
    """A class, since a generator costs a small request three times as much."""

    __slots__ = ("_began", "_name", "_notes", "_span")

    def __init__(self, context: RequestContext, name: str) -> None:
        self._notes = context.notes
        self._name = name
        self._span = context.trace.step(name)

    def __enter__(self) -> None:
        self._began = perf_counter()
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._span.__exit__(kind, error, trace)
        finally:
            key = f"{self._name}_ms"
            self._notes[key] = round(self._notes.get(key, 0.0) + (perf_counter() - self._began) * 1000, 2)


def context_of(request: Request) -> RequestContext:
    context: RequestContext = request.scope["catalejo"]
    return context


class RequestScope:
    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: bool, observer: Observer | None = None) -> None:
        """`observer`: None where no request is traced or accounted."""
        self._app = app
        self._metrics = metrics
        self._access_log = access_log
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = scope["catalejo"] = _context(scope)
        tracing = self._observer.tracing if self._observer is not None else None
        if tracing is not None and scope["path"] not in QUIET_ROUTES:
            context.trace = tracing.begin(scope, context.request_id)
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
        context.trace.end(route, status or 499, context.error_code, {"catalejo.tenant": context.tenant})
        if context.usage is not None:
            self._account(context, context.usage, status, elapsed)
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
                    "trace_id": context.trace.trace_id,
                    **(context.usage.fields() if context.usage is not None else {}),
                    **context.notes,
                },
            )

    def _account(self, context: RequestContext, usage: RequestUsage, status: int, elapsed: float) -> None:
        model = context.notes.get("model", "")
        outcome = outcome_of(status, context.error_code, "client_gone" in context.notes)
        child(self._metrics.generations, model, outcome).inc()
        if self._observer is not None and self._observer.ledger is not None:
            self._observer.ledger.add(
                UsageRecord(time(), context.request_id, context.tenant, model, outcome, elapsed, usage)
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

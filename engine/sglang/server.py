"""Our routes on SGLang's own app and port: the contract's, and two of SGLang's that must know about it."""

from __future__ import annotations

import hmac
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engine import wire
from engine.contract.body import read_body, refusal, reply
from engine.contract.errors import Refusal
from engine.contract.streaming import Ndjson, StreamedReply
from engine.sglang.service import Host, Service

OURS = frozenset({wire.ROUTE, "/model_info", "/get_model_info"})


def install(app: Any, host: Host, adapter: Any, token: str | None) -> Service:
    """Puts the routes before SGLang's. `token` is SGLang's --api-key: our refusals carry the contract's error body."""
    service = Service(host, adapter)
    routes = Routes(service)
    app.router.routes[:0] = [
        Route(wire.ROUTE, routes.generate, methods=["POST"]),
        Route("/model_info", routes.model_info, methods=["GET"]),
        Route("/get_model_info", routes.model_info, methods=["GET"]),
    ]
    outermost(app, service, token)
    return service


def outermost(app: Any, service: Service, token: str | None) -> None:
    """In front of whatever middleware SGLang adds later, its API key check among it."""
    inner = app.build_middleware_stack
    app.build_middleware_stack = lambda: Outermost(inner(), service, token)


class Routes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def generate(self, request: Request) -> Response:
        service = self._service
        try:
            body = await read_body(request, service.limits.max_body_bytes)
            stream = await service.open(wire.decode_request(memoryview(body)))
        except (Refusal, wire.WireError) as error:
            return refusal(error)
        except ClientDisconnect:
            return Response()
        return StreamedReply(stream, Ndjson(), service.limits.keep_alive_s, lambda: service.finished(stream))

    async def model_info(self, request: Request) -> Response:
        service = self._service
        host = service.host
        ours = {"version": 1, "engine": "sglang", "seeds": host.seeds, "priorities": host.priorities}
        return reply({**await host.model_info(), "context_length": host.context_length, "catalejo": ours})


class Outermost:
    """A plain ASGI layer in front of SGLang's own: the contract's 401 for the contract's route, and aborts of requests
    that are ours. Everything else passes untouched."""

    def __init__(self, app: ASGIApp, service: Service, token: str | None) -> None:
        self._app = app
        self._service = service
        self._expected = None if not token else f"Bearer {token}".encode()

    def _allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return self._expected is None or hmac.compare_digest(given, self._expected)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["path"] in OURS and not self._allowed(scope):
                body = {"error": {"code": "unauthorized", "message": "a bearer token is required", "param": None}}
                await reply(body, 401, {"www-authenticate": "Bearer"})(scope, receive, send)
                return
            if scope["path"] == "/abort_request" and scope["method"] == "POST" and self._allowed(scope):
                receive = await self._abort(receive)
        await self._app(scope, receive, send)

    async def _abort(self, receive: Receive) -> Receive:
        """Aborts what is ours, then lets SGLang see the same body."""
        body = bytearray()
        more = True
        while more and len(body) <= 1 << 20:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            body += message.get("body", b"")
            more = message.get("more_body", False)
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError:
            asked = None
        if isinstance(asked, dict) and isinstance(asked.get("rid"), str):
            self._service.abort(asked["rid"])
        sent = False

        async def again() -> Any:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": bytes(body), "more_body": more}

        return again

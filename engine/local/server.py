"""HTTP routes of the embedded engine. Same surface as a SGLang server with our plugin; the list is at the bottom."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import torch
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engine import wire
from engine.contract.body import read_body, reply
from engine.contract.body import refusal as contract_refusal
from engine.contract.errors import Refusal
from engine.contract.streaming import Dialect, Ndjson, StreamedReply, leaving
from engine.local import checkpoint, stock
from engine.local.model import Model
from engine.local.options import EngineOptions
from engine.local.service import Service, Stream

SMALL_PARAMETERS = 50_000_000
"""Below this a second CPU thread costs more than it gives, and far more when the cores are busy."""
OPEN_PATHS = frozenset({"/health", "/health_generate", "/metrics"})


def create_app(options: EngineOptions) -> Starlette:
    """Loads the model (seconds to minutes) and returns the ASGI app; the engine's thread starts with it."""
    folder = checkpoint.locate(options.model)
    model = Model(folder, options.dtype, checkpoint.pick_device(options.device))
    if options.threads is not None or model.parameters < SMALL_PARAMETERS:
        torch.set_num_threads(options.threads or 1)
    service = Service(model, folder, options)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        service.draining = True
        service.fail_all()
        await service.close()

    app = Starlette(routes=ROUTES, lifespan=lifespan, middleware=[Middleware(BearerToken, token=options.token)])
    app.state.service = service
    return app


class BearerToken:
    """401 unless the token is right; open paths and an unset token need none."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._expected is not None and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                body = {"error": {"code": "unauthorized", "message": "a bearer token is required", "param": None}}
                await reply(body, 401, {"www-authenticate": "Bearer"})(scope, receive, send)
                return
        await self._app(scope, receive, send)


def refusal(service: Service, error: Refusal | wire.WireError) -> Response:
    service.metrics.refused.labels(error.code).inc()
    return contract_refusal(error)


# ------------------------------------------------------------------------------------------------ generation
def streamed(service: Service, stream: Stream, dialect: Dialect) -> StreamedReply:
    return StreamedReply(stream, dialect, service.options.keep_alive_s, lambda: service.finished(stream))


async def generate(request: Request) -> Response:
    """The contract's route."""
    service: Service = request.app.state.service
    try:
        body = await read_body(request, service.options.max_body_bytes)
        stream = await service.open(wire.decode_request(memoryview(body)))
    except (Refusal, wire.WireError) as error:
        return refusal(service, error)
    except ClientDisconnect:
        return Response()
    return streamed(service, stream, Ndjson())


async def stock_generate(request: Request) -> Response:
    service: Service = request.app.state.service
    try:
        asked, as_stream, incremental = stock.parse(bytes(await read_body(request, service.options.max_body_bytes)))
        stream = await service.open(asked)
    except (Refusal, wire.WireError) as error:
        return refusal(service, error)
    except ClientDisconnect:
        return Response()
    answer = stock.Answer(asked, incremental)
    if as_stream:
        return streamed(service, stream, stock.Sse(answer))
    try:
        async with leaving(request.receive, stream.leave):
            while not stream.gone:
                replies = await stream.next(service.options.keep_alive_s)
                for one in replies:
                    answer.take(one)
                if replies and isinstance(replies[-1], (wire.Done, wire.Failure)):
                    break
    finally:
        service.finished(stream)
    if answer.failure is not None:
        error = {"code": answer.failure.code, "message": answer.failure.message}
        return reply({"error": error}, 503 if answer.failure.retryable else 500)
    return reply(answer.whole())


async def abort_request(request: Request) -> Response:
    service: Service = request.app.state.service
    try:
        body = orjson.loads(await read_body(request, 1 << 20))
    except (orjson.JSONDecodeError, wire.WireError) as error:
        return refusal(service, wire.BadHeader(f"body is not JSON: {error}"))
    everything = isinstance(body, dict) and body.get("abort_all") is True
    rid = body.get("rid") if isinstance(body, dict) else None
    if not everything and not isinstance(rid, str):
        return refusal(service, wire.BadHeader("rid must be a string", param="rid"))
    service.abort(None if everything else rid)
    return Response()


# ------------------------------------------------------------------------------------------------ state
async def health(request: Request) -> Response:
    return Response(status_code=503 if request.app.state.service.draining else 200)


async def model_info(request: Request) -> Response:
    service: Service = request.app.state.service
    text = service.model.text_config
    return reply(
        {
            "model_path": str(service.folder),
            "tokenizer_path": str(service.folder),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "context_length": service.core.max_context,
            "page_size": service.core.page_size,
            "vocab_size": text.vocab_size,
            "dtype": str(service.model.dtype).removeprefix("torch."),
            "device": str(service.model.device),
            "catalejo": {"version": 1, "engine": "local"},
        }
    )


async def loads(request: Request) -> Response:
    service: Service = request.app.state.service
    core = service.core
    running, waiting = len(core.scheduler.running), len(core.scheduler.waiting)
    total = core.n_pages * core.page_size
    used = core.cache.used * core.page_size
    asked = core.scheduler.asked_tokens
    one = {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_total_reqs": running + waiting,
        "num_used_tokens": used,
        "max_total_num_tokens": total,
        "token_usage": used / total,
        "cache_hit_rate": core.scheduler.hit_tokens / asked if asked else 0.0,
        "max_running_requests": core.scheduler.max_running,
    }
    aggregate = {"total_running_reqs": running, "total_waiting_reqs": waiting, "total_used_tokens": used}
    return reply({"timestamp": time.time(), "dp_rank_count": 1, "loads": [one], "aggregate": aggregate})


async def metrics(request: Request) -> Response:
    text = generate_latest(request.app.state.service.metrics.registry)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def flush_cache(request: Request) -> Response:
    request.app.state.service.flush_cache()
    return Response()


ROUTES = [
    Route(wire.ROUTE, generate, methods=["POST"]),
    Route("/generate", stock_generate, methods=["POST"]),
    Route("/abort_request", abort_request, methods=["POST"]),
    Route("/flush_cache", flush_cache, methods=["POST"]),
    Route("/health", health),
    Route("/health_generate", health),
    Route("/model_info", model_info),
    Route("/get_model_info", model_info),
    Route("/v1/loads", loads),
    Route("/metrics", metrics),
]

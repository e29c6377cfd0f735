"""The HTTP server: routes, bearer token, and `MockEngine` for tests.

GET /health, /health_generate, /model_info (/get_model_info), /v1/loads, /metrics; POST /generate, /abort_request,
/flush_cache, /catalejo/v1/generate. For tests, without token: GET /log[?event=request|refused|abort], DELETE /log,
PUT /script (a new script from now on)."""

from __future__ import annotations

import hmac
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from engine import wire
from tests.mock_engine import contract, stock
from tests.mock_engine.checkpoint import MockCheckpoint
from tests.mock_engine.script import Script, ScriptError, parse_script
from tests.mock_engine.state import STATE, Options, State

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN_PATHS = frozenset({"/health", "/health_generate", "/metrics", "/log", "/script"})


@web.middleware
async def require_token(request: web.Request, handler: Handler) -> web.StreamResponse:
    token = State.of(request).options.token
    if token is None or request.path in OPEN_PATHS:
        return await handler(request)
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        body = {"error": {"code": "unauthorized", "message": "a bearer token is required", "param": None}}
        return web.json_response(body, status=401, headers={"www-authenticate": "Bearer"})
    return await handler(request)


async def health(request: web.Request) -> web.Response:
    return web.Response()


async def model_info(request: web.Request) -> web.Response:
    state = State.of(request)
    path = str(state.checkpoint.path)
    info = {
        "model_path": path,
        "tokenizer_path": path,
        "is_generation": True,
        "weight_version": "default",
        "preferred_sampling_params": None,
    }
    if not state.options.stock_only:
        info["catalejo"] = {"version": 1, "engine": "mock"}
        info["context_length"] = state.checkpoint.max_positions
        info["page_size"] = state.options.page_size
        if state.options.vocab_size is not None:
            info["vocab_size"] = state.options.vocab_size
    return web.json_response(info)


async def loads(request: web.Request) -> web.Response:
    state = State.of(request)
    running, used = len(state.registry.running), len(state.prefixes) * state.options.page_size
    one = {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": 0,
        "num_used_tokens": used,
        "max_total_num_tokens": 1 << 22,
        "token_usage": used / (1 << 22),
        "gen_throughput": 0.0,
        "max_running_requests": 4096,
    }
    total = {"total_running_reqs": running, "total_waiting_reqs": 0, "total_used_tokens": used}
    return web.json_response({"timestamp": time.time(), "dp_rank_count": 1, "loads": [one], "aggregate": total})


async def metrics(request: web.Request) -> web.Response:
    registry = State.of(request).registry
    rows = (
        ("sglang:num_running_reqs", "gauge", len(registry.running)),
        ("sglang:num_queue_reqs", "gauge", 0),
        ("sglang:num_requests_total", "counter", registry.finished),
        ("sglang:generation_tokens_total", "counter", registry.generated_tokens),
    )
    text = "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, kind, value in rows)
    return web.Response(text=text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


async def abort_request(request: web.Request) -> web.Response:
    try:
        body = await request.json()
    except json.JSONDecodeError:
        return web.json_response({"error": {"code": "bad_request", "message": "body is not JSON"}}, status=400)
    everything = bool(body.get("abort_all"))
    rid = body.get("rid")
    if not everything and not isinstance(rid, str):
        return web.json_response({"error": {"code": "bad_request", "message": "rid must be a string"}}, status=400)
    State.of(request).registry.abort(None if everything else rid)
    return web.Response()


async def flush_cache(request: web.Request) -> web.Response:
    state = State.of(request)
    state.prefixes.flush()
    state.rows.flush()
    return web.Response()


async def read_log(request: web.Request) -> web.Response:
    lines = State.of(request).recorder.lines(request.query.get("event"))
    return web.Response(body=lines, content_type="application/x-ndjson")


async def clear_log(request: web.Request) -> web.Response:
    State.of(request).recorder.clear()
    return web.Response()


async def put_script(request: web.Request) -> web.Response:
    try:
        State.of(request).script = Script(parse_script(await request.json()))
    except (ScriptError, json.JSONDecodeError) as e:
        return web.json_response({"error": {"code": "bad_script", "message": str(e)}}, status=400)
    return web.Response()


def create_app(state: State) -> web.Application:
    app = web.Application(middlewares=[require_token], client_max_size=state.options.max_body_bytes)
    app[STATE] = state
    router = app.router
    for path in ("/health", "/health_generate"):
        router.add_get(path, health)
    for path in ("/model_info", "/get_model_info"):
        router.add_get(path, model_info)
    router.add_get("/v1/loads", loads)
    router.add_get("/metrics", metrics)
    router.add_post("/abort_request", abort_request)
    router.add_post("/flush_cache", flush_cache)
    router.add_post("/generate", stock.generate)
    if not state.options.stock_only:
        router.add_post(wire.ROUTE, contract.generate)
    router.add_get("/log", read_log)
    router.add_delete("/log", clear_log)
    router.add_put("/script", put_script)
    return app


class MockEngine:
    """A mock engine on a port of its own inside the caller's event loop, as an async context manager."""

    def __init__(
        self,
        model: str | Path,
        script: list[dict[str, Any]] | None = None,
        tls: ssl.SSLContext | None = None,
        **options: Any,
    ) -> None:
        self._tls = tls
        self._state = State(Options(model, **options), Script(parse_script(script or [])))
        self._runner: web.AppRunner | None = None
        self.port = self._state.options.port

    async def start(self) -> None:
        options = self._state.options
        runner = web.AppRunner(
            create_app(self._state),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=1,
            keepalive_timeout=75,
        )
        await runner.setup()
        site = web.TCPSite(runner, options.host, options.port, reuse_address=True, backlog=1024, ssl_context=self._tls)
        await site.start()
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://{self._state.options.host}:{self.port}"

    @property
    def checkpoint(self) -> MockCheckpoint:
        return self._state.checkpoint

    @property
    def running(self) -> int:
        return len(self._state.registry.running)

    def log(self, event: str | None = None) -> list[dict[str, Any]]:
        """Everything recorded so far, or one kind of event."""
        return self._state.recorder.read(event)

    def requests(self) -> list[dict[str, Any]]:
        return self.log("request")

    def aborts(self) -> list[dict[str, Any]]:
        return self.log("abort")

    def clear_log(self) -> None:
        self._state.recorder.clear()

    def script(self, answers: list[dict[str, Any]]) -> None:
        """Replaces the script."""
        self._state.script = Script(parse_script(answers))

    def forget(self) -> None:
        """Empties the prefix cache and the store of rows, as a restart would."""
        self._state.prefixes.flush()
        self._state.rows.flush()

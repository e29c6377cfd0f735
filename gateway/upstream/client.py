"""The engine's client: one POST per generation, replies handed over as they arrive.

`open()` returns once the engine has answered its status line, so that a refusal is an exception and never a stream.
Closing the stream (stream.py) before its end closes the connection, and the engine aborts the request, during prefill too.

Resending: a 409 `missing_media` is answered with all rows, once, to the same engine. A connection that broke before any
byte of the answer came is tried once more (an idle pooled connection may have been closed by the engine).
Not here: which engine (gateway/routing).
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import orjson

from engine.wire import (
    CONTENT_TYPE,
    ROUTE,
    GenerateRequest,
    Item,
    ReplyReader,
    encode_request,
)
from gateway.errors import ApiError
from gateway.metrics import Metrics, child
from gateway.upstream.credentials import split_credentials
from gateway.upstream.http import Answer, ConnectTimeout, HttpError, HttpPool
from gateway.upstream.settings import UpstreamSettings
from gateway.upstream.stock import STOCK_ROUTE, StockReader, encode_stock
from gateway.upstream.stream import EngineTimeout, GenerationStream, Phase

MAX_REFUSAL_BYTES: Final = 64 << 10
Buffers = list[bytes | memoryview]
REFUSES: Final = "it refuses connections"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    healthy: bool
    context_length: int | None = None
    detail: str = ""
    silent: bool = False
    """Not healthy for want of an answer in time; it may only be busy."""
    vocab_size: int | None = None
    """None when it does not tell."""
    load: float | None = None
    """Requests it runs and queues, from all its clients (GET /v1/loads); None when it does not tell."""


class EngineClient:
    """One engine. Generations go over its own pool (http.py); health, aborts and loads over a session all share."""

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None,
        session: aiohttp.ClientSession,
        settings: UpstreamSettings,
        metrics: Metrics,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        """`tls` and `server_name` as of HttpPool."""
        self.name = name
        self.url, basic = split_credentials(url.rstrip("/"))
        authorization = f"Bearer {token}" if token else basic
        self._headers = {"authorization": authorization} if authorization else {}
        self._session = session
        self._settings = settings
        self._metrics = metrics
        self._pool = HttpPool(
            self.url,
            connect_timeout_s=settings.connect_timeout_s,
            idle_s=settings.pool_idle_s,
            tls=tls,
            server_name=server_name,
        )
        self._control: dict[str, Any] = {"headers": self._headers, "allow_redirects": False}
        if tls is not None:
            self._control |= {"ssl": tls, "server_hostname": server_name}
        self.stock = False
        """True when the engine has no route of ours: found out by `status`."""

    async def open(
        self,
        request: GenerateRequest,
        known_media: frozenset[str] = frozenset(),
        on_missing: Callable[[Iterable[str]], None] = lambda hashes: None,
        until: float | None = None,
    ) -> GenerationStream:
        """Sends the request; items whose hash is in `known_media` go without their rows, at first. `until`: the `deadline()` of
        the request's first engine, if this is not the first. Raises ApiError."""
        if self.stock and request.items:
            raise ApiError("unsupported_parameter", "the engine behind this model takes no media", param="messages")
        bare = request
        if known_media:
            bare = replace(request, items=tuple(_bare(i) if i.hash in known_media else i for i in request.items))
        times, loop = self._settings, asyncio.get_running_loop()
        began = loop.time()
        until = self.deadline() if until is None else until
        limits: dict[Phase, float] = {
            "accept": times.accept_timeout_s,
            "first_token": times.first_token_timeout_s,
            "total": until - began,
        }
        phase = min(limits, key=lambda p: limits[p])
        try:
            async with asyncio.timeout(limits[phase]) as whole:
                response = await self._post(bare)
                if response.status == 409:
                    body = await _body(response)
                    missing = body.get("missing")
                    on_missing([h for h in missing if isinstance(h, str)] if isinstance(missing, list) else known_media)
                    child(self._metrics.upstream_retries, self.name, "missing_media").inc()
                    response = await self._post(request)
        except ConnectTimeout:
            self._count("timeout")
            raise EngineTimeout("connect", times.connect_timeout_s) from None
        except TimeoutError:
            self._count("timeout")
            if not whole.expired():
                raise EngineTimeout("silence", self.silence_s) from None
            raise EngineTimeout(phase, times.total_timeout_s if phase == "total" else limits[phase]) from None
        except OSError as e:
            self._count("unreachable")
            message = f"the engine cannot be reached ({type(e).__name__})"
            raise EngineUnreachable(message, refused=_refused(e)) from None
        self._count(str(response.status))
        if response.status == 200:
            reader = StockReader() if self.stock else ReplyReader()
            return GenerationStream(self, request.rid, response, reader, times, began, until)
        raise _as_api_error(response.status, response.headers, (await _body(response)).get("error"))

    def deadline(self) -> float:
        """Loop time at which the answer to a request that is sent now must be there."""
        return asyncio.get_running_loop().time() + self._settings.total_timeout_s

    async def abort(self, rid: str, reason: str) -> None:
        """Asks the engine to end `rid`; its stream then tells usage and finishes. Failure is harmless: see close."""
        child(self._metrics.upstream_aborts, self.name, reason).inc()
        try:
            async with asyncio.timeout(self._settings.abort_wait_s):
                async with self._session.post(
                    self.url + "/abort_request", json={"rid": rid}, **self._control
                ) as response:
                    await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return

    async def status(self, timeout_s: float) -> EngineStatus:
        """GET /health, then /model_info for the context length. Never raises."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.get(self.url + "/health", **self._control) as response:
                    if response.status != 200:
                        return EngineStatus(False, detail=f"/health answered {response.status}")
                async with self._session.get(self.url + "/model_info", **self._control) as response:
                    info = orjson.loads(await response.read()) if response.status == 200 else {}
                async with self._session.get(self.url + "/v1/loads", **self._control) as response:
                    loads = orjson.loads(await response.read()) if response.status == 200 else {}
        except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError) as e:
            detail = REFUSES if isinstance(e, OSError) and _refused(e) else type(e).__name__
            return EngineStatus(False, detail=detail, silent=isinstance(e, TimeoutError))
        if not isinstance(info, dict):
            return EngineStatus(False, detail="/model_info is not an object")
        self.stock = "model_path" in info and not info.get("catalejo")
        context = info.get("context_length", info.get("max_model_len"))
        vocabulary = info.get("vocab_size")
        return EngineStatus(
            True,
            context if isinstance(context, int) and context > 0 else None,
            vocab_size=vocabulary if isinstance(vocabulary, int) else None,
            load=_load(loads),
        )

    async def kv_events(self, timeout_s: float) -> Any:
        """What GET /server_info says of its KV events (SGLang); None when it publishes none. Raises OSError."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.get(self.url + "/server_info", **self._control) as response:
                    if response.status != 200:
                        return None
                    info = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as e:
            raise OSError(type(e).__name__) from None
        return info.get("kv_events") if isinstance(info, dict) else None

    async def _post(self, request: GenerateRequest) -> Answer:
        buffers: Buffers = [encode_stock(request)] if self.stock else encode_request(request)
        size = sum(b.nbytes if isinstance(b, memoryview) else len(b) for b in buffers)
        kind = "application/json" if self.stock else CONTENT_TYPE
        headers = {**self._headers, "content-type": kind}
        path = STOCK_ROUTE if self.stock else ROUTE
        silence_s = self.silence_s
        if request.traceparent:
            headers["traceparent"] = request.traceparent
        child(self._metrics.upstream_bytes, self.name).inc(size)
        try:
            return await self._pool.post(path, headers, buffers, size, silence_s=silence_s)
        except HttpError as e:
            if not e.untouched:
                raise
        child(self._metrics.upstream_retries, self.name, "stale_connection").inc()
        return await self._pool.post(path, headers, buffers, size, silence_s=silence_s, fresh=True)

    @property
    def silence_s(self) -> float:
        # A stock server says nothing during prefill.
        return self._settings.accept_timeout_s if self.stock else self._settings.idle_timeout_s

    def close(self) -> None:
        """Drops idle connections."""
        self._pool.close()

    def _count(self, status: str) -> None:
        child(self._metrics.upstream_requests, self.name, status).inc()


class EngineUnreachable(ApiError):
    """Nothing reached the engine's scheduler: another engine may be tried."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__("engine_unavailable", message)
        self.refused = refused
        """Nothing listens there: the engine is gone, or not yet up."""


def _load(loads: Any) -> float | None:
    """Running plus waiting requests over all data-parallel ranks, or None for an answer of another shape."""
    ranks = loads.get("loads") if isinstance(loads, dict) else None
    if not isinstance(ranks, list) or not ranks:
        return None
    try:
        return float(sum(r["num_running_reqs"] + r["num_waiting_reqs"] for r in ranks))
    except (TypeError, KeyError):
        return None


def _bare(item: Item) -> Item:
    return replace(item, data=None)


async def _body(response: Answer) -> Mapping[str, Any]:
    """The JSON object of a refusal, or an empty one."""
    raw = bytearray()

    def take(piece: bytes) -> bool:
        raw.extend(piece)
        return len(raw) <= MAX_REFUSAL_BYTES

    try:
        if not await response.deliver(take):
            return {}
        body = orjson.loads(raw)
    except (OSError, TimeoutError, orjson.JSONDecodeError):
        return {}
    finally:
        response.close()
    return body if isinstance(body, dict) else {}


def _as_api_error(status: int, headers: Mapping[str, str], given: Any) -> ApiError:
    error: Mapping[str, Any] = given if isinstance(given, dict) else {}
    code, message = error.get("code"), error.get("message")
    text = message if isinstance(message, str) else "no reason given"
    if status in (400, 422):
        if code == "context_length_exceeded":
            return ApiError("context_length_exceeded", text, param="messages")
        param = error.get("param")
        if param == "grammar.value":
            return ApiError(
                "invalid_schema", f"the engine cannot hold an answer to the schema: {text}", param="response_format"
            )
        return ApiError("engine_refused", f"the engine refused the request: {text}", param=_client_param(param))
    if status == 429 or status == 503:
        wait = headers.get("retry-after", "")
        retry = float(wait) if wait.isascii() and wait.isdigit() else None
        return ApiError("overloaded", "the engine has no room for the request now", retry_after_s=retry)
    if status == 409:
        return ApiError("engine_error", "the engine asked for media twice")
    if status in (401, 403):
        return ApiError("engine_error", "the engine does not accept this gateway's token")
    return ApiError("engine_error", f"the engine answered with status {status}")


def _client_param(param: Any) -> str | None:
    """The engine speaks of its own fields; a client knows the sampling names."""
    if not isinstance(param, str):
        return None
    name = param.removeprefix("sampling.")
    return {"sampling_seed": "seed", "max_new_tokens": "max_tokens", "grammar.value": "response_format"}.get(name, name)


def _refused(error: OSError) -> bool:
    """Whether nothing listens there. Where several addresses were tried asyncio joins the texts."""
    cause = getattr(error, "os_error", error)  # aiohttp's own
    return f"[Errno {errno.ECONNREFUSED}]" in str(cause)

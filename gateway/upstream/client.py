"""The engine's client: one POST per generation, replies handed over as they arrive.

`open()` returns once the engine has answered its status line, so that a refusal is an exception and never a stream.
Iterating a `GenerationStream` gives lists: everything that one read brought. Closing it before the end closes the
connection, and the engine aborts the request, during prefill too.

Resending: a 409 `missing_media` is answered with all rows, once, to the same engine. A connection that broke before any
byte of the answer came is tried once more (an idle pooled connection may have been closed by the engine).
Not here: which engine (gateway/routing).
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import aiohttp
import orjson

from engine.wire import (
    CONTENT_TYPE,
    ROUTE,
    BadReply,
    GenerateRequest,
    Item,
    Reply,
    ReplyReader,
    encode_request,
)
from gateway.errors import ApiError
from gateway.metrics import Metrics, child
from gateway.observability.tracing import NO_SPAN, EngineSpan
from gateway.upstream.http import Answer, ConnectTimeout, HttpError, HttpPool
from gateway.upstream.settings import UpstreamSettings
from gateway.upstream.stock import STOCK_ROUTE, StockReader, encode_stock

MAX_REFUSAL_BYTES: Final = 64 << 10
Buffers = list[bytes | memoryview]
Phase = Literal["connect", "accept", "silence", "first_token", "token", "total"]
PHASES: Final[Mapping[Phase, tuple[str, str]]] = {
    "connect": ("took no connection", "connect_timeout_s"),
    "accept": ("did not accept the request", "accept_timeout_s"),
    "silence": ("sent nothing, not even a keep-alive,", "idle_timeout_s"),
    "first_token": ("gave no first token", "first_token_timeout_s"),
    "token": ("gave no next token", "token_timeout_s"),
    "total": ("did not finish the answer", "total_timeout_s"),
}


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
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
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
            refused = f"[Errno {errno.ECONNREFUSED}]" in str(e)  # several addresses tried: asyncio joins the texts
            raise EngineUnreachable(f"the engine cannot be reached ({type(e).__name__})", refused=refused) from None
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
            return EngineStatus(False, detail=type(e).__name__, silent=isinstance(e, TimeoutError))
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


class EngineTimeout(ApiError):
    """The engine took too long in one phase of a request; the message names it, its limit and the setting."""

    def __init__(self, phase: Phase, limit_s: float) -> None:
        what, setting = PHASES[phase]
        super().__init__("engine_timeout", f"the engine {what} within {limit_s:g} s (upstream.{setting})")
        self.phase = phase


class EngineUnreachable(ApiError):
    """Nothing reached the engine's scheduler: another engine may be tried."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__("engine_unavailable", message)
        self.refused = refused
        """Nothing listens there: the engine is gone, or not yet up."""


class GenerationStream:
    """The replies of one request. Iterate, then `aclose()`; both ends are safe to call twice."""

    def __init__(
        self,
        client: EngineClient,
        rid: str,
        response: Answer,
        reader: ReplyReader | StockReader,
        times: UpstreamSettings,
        began: float,
        until: float,
    ) -> None:
        """Loop times: `began`, at which the request was sent to this engine; `until`, at which the whole answer must be there."""
        self.client = client
        self.rid = rid
        self._response = response
        self._reader = reader
        self._times = times
        self._clock = asyncio.get_running_loop().time
        self._first_until = began + times.first_token_timeout_s
        self.until = until
        self.on_first_token: Callable[[], None] | None = None
        self.on_success: Callable[[], None] | None = None
        """The answer came to its end. Acceptance is no success: an engine may take everything and finish nothing."""
        self.on_failure: Callable[[], None] | None = None
        self.on_close: Callable[[], None] | None = None
        self.span: EngineSpan = NO_SPAN
        self.began = False
        self.tokens_seen = False
        """Set by the reader of the replies: the request can no longer be moved to another engine."""

    async def batches(self) -> AsyncIterator[list[Reply]]:
        """Yields every reply that has arrived, in lists. Raises ApiError when the engine breaks off or takes too long."""
        response = self._response
        response.deadline = min(self._first_until, self.until)
        try:
            async for data in response.pieces():
                if replies := self._reader.feed(data):
                    if not self.began:
                        self.began = True
                        self.span.first_token()
                        if self.on_first_token is not None:
                            self.on_first_token()
                    yield replies
                    if self._reader.ended:
                        break
                    # From when the reader is back, however slow it is.
                    response.deadline = min(self._clock() + self._times.token_timeout_s, self.until)
                if self._clock() >= response.deadline:  # a stream of keep-alives, or one that never ends
                    raise TimeoutError
            self._reader.finish()
            # The chunked body's last bytes let the connection go back to the pool; mostly they are here already.
            response.settle()
            if self.on_success is not None:
                self.on_success()
        except BadReply:
            self.broke()
            raise ApiError("engine_error", "the engine's answer broke off or was not understood") from None
        except TimeoutError:
            if not self._reader.ended:
                self.broke()
                raise self._late() from None
        except OSError:
            if not self._reader.ended:
                self.broke()
                raise ApiError("engine_error", "the connection to the engine broke during the answer") from None

    def broke(self) -> None:
        """The engine failed this answer. Before the first token the request may move, and who moves it counts the failure."""
        if self.tokens_seen and self.on_failure is not None:
            self.on_failure()

    def _late(self) -> EngineTimeout:
        """Which limit it was."""
        now, times = self._clock(), self._times
        if now >= self.until:
            return EngineTimeout("total", times.total_timeout_s)
        if now >= self._response.deadline:
            if self.began:
                return EngineTimeout("token", times.token_timeout_s)
            return EngineTimeout("first_token", times.first_token_timeout_s)
        return EngineTimeout("silence", self.client.silence_s)

    @property
    def finished(self) -> bool:
        return self._reader.ended

    def close(self) -> None:
        """Ends the connection unless the answer was read to its end; the engine then aborts the request."""
        self._response.close()
        self.span.end(None if self.finished else "aborted")
        if self.on_close is not None:
            self.on_close()
            self.on_close = None


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
    raw = b""
    try:
        async for piece in response.pieces():
            raw += piece
            if len(raw) > MAX_REFUSAL_BYTES:
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

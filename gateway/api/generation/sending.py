"""A finished request to an engine that accepts it: the best worker, then another one for as long as there are some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Final, TypeVar

from engine.wire import GenerateRequest
from gateway.api.context import RequestContext
from gateway.api.generation.plan import Plan
from gateway.api.generation.run import MOVABLE
from gateway.errors import ApiError
from gateway.metrics import Metrics, child
from gateway.routing.router import Router
from gateway.routing.worker import Worker
from gateway.upstream.client import EngineUnreachable
from gateway.upstream.stream import GenerationStream

T = TypeVar("T")
LARGE_PROMPT_TOKENS: Final = 65536


async def timed(metrics: Metrics, step: str, large: bool, work: Callable[[], T]) -> T:
    """`work()`, in a thread when it is large."""
    began = perf_counter()
    try:
        return await asyncio.to_thread(work) if large else work()
    finally:
        child(metrics.steps, step).observe(perf_counter() - began)


class Sender:
    """Of one model: `router` knows its engines."""

    def __init__(self, router: Router, metrics: Metrics, model_name: str) -> None:
        self._router = router
        self._metrics = metrics
        self._model_name = model_name

    async def send(
        self, request: GenerateRequest, plan: Plan, context: RequestContext, tried: set[str]
    ) -> GenerationStream:
        """To the best worker not in `tried`; to another one when it could not be reached or has no place left. `tried`
        grows by every worker that failed. Closing the stream gives the worker's slot back."""
        long = len(request.input_ids) > LARGE_PROMPT_TOKENS
        route = await timed(
            self._metrics,
            "route",
            long,
            lambda: self._router.route_request(request.input_ids, request.items, request.cache_salt, plan.session),
        )
        while True:
            try:
                worker, new_tokens = self._router.pick(route, exclude=frozenset(tried))
            except ApiError:
                if await self._router.meet():
                    continue
                raise
            ticket = worker.take(len(request.input_ids), new_tokens)
            try:
                stream = await self._open(worker, request, plan.route, context)
            except BaseException as e:
                ticket.end()
                if not isinstance(e, ApiError):
                    raise
                tried.add(worker.name)
                if e.code not in MOVABLE or context.too_late or not self._router.others(tried):
                    raise
                child(self._metrics.upstream_retries, worker.name, e.code).inc()
                continue
            stream.on_first_token = ticket.computed
            stream.on_success, stream.on_failure = worker.succeeded, worker.failed
            stream.on_close = ticket.end
            return stream

    async def _open(
        self, worker: Worker, request: GenerateRequest, route: str, context: RequestContext
    ) -> GenerationStream:
        span = context.trace.engine(worker.name, self._model_name, route, request)
        if span.traceparent is not None:
            request = replace(request, traceparent=span.traceparent)
        try:
            if context.until is None:
                context.until = worker.client.deadline()
            known = worker.known_media(i.hash for i in request.items)
            stream = await worker.client.open(request, known, worker.forget_media, context.until)
            stream.span = span
        except BaseException as e:
            span.end(e.code if isinstance(e, ApiError) else "aborted")
            if not isinstance(e, ApiError):
                raise
            # Whose time was used up before says nothing of this engine.
            if e.code in ("engine_unavailable", "engine_error", "engine_timeout") and not context.too_late:
                worker.failed()
            if isinstance(e, EngineUnreachable) and e.refused:
                self._router.gone(worker)
            raise
        worker.remember_media(request.items)
        return stream

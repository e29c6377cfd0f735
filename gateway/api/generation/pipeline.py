"""The life of a request from admission to the engine's acceptance; see architecture.md. Each step calls one room.

Everything a client can get wrong is refused here or before, so a stream and a plain answer fail alike. Cancelling
`open()` at any point (the client left) gives back what was taken.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from engine.wire import GenerateRequest, Grammar, Item
from gateway.admission.admission import Admission, Permit
from gateway.api.context import RequestContext
from gateway.api.generation.plan import Plan
from gateway.api.generation.run import MOVABLE, Run
from gateway.api.generation.text import TextWork, context_exceeded
from gateway.api.settings import ApiSettings
from gateway.errors import ApiError
from gateway.metrics import Metrics, child
from gateway.observability.usage import RequestUsage
from gateway.routing.blocks import block_names
from gateway.routing.router import Router
from gateway.routing.worker import Worker
from gateway.upstream.client import EngineUnreachable, GenerationStream

if TYPE_CHECKING:
    from gateway.media.service import MediaService
    from gateway.media.types import PreparedMedia
    from gateway.prompt import Checkpoint, RenderedPrompt

T = TypeVar("T")
LARGE_PROMPT_TOKENS: Final = 65536
RECORD_BLOCK_TOKENS: Final = 512  # what loadtest/replay.py and public traces count in


async def _settle(permit: Permit, run: Run) -> None:
    permit.settle(run.completion_tokens)


def _add_media(context: RequestContext, media: Sequence[PreparedMedia]) -> None:
    assert context.usage is not None
    for part in media:
        if part.modality == "image":
            context.usage.images += 1
        else:
            context.usage.videos += 1
        context.usage.media_bytes += part.source_bytes


@dataclass(frozen=True, slots=True)
class _Inputs:
    rendered: RenderedPrompt
    media: list[PreparedMedia]
    media_s: float


class Pipeline:
    def __init__(
        self,
        checkpoint: Checkpoint,
        admission: Admission,
        media: MediaService,
        router: Router,
        metrics: Metrics,
        *,
        model_name: str,
        context_length: int | None,
        api: ApiSettings,
        abort_wait_s: float,
        record_blocks: bool = False,
        log_prompt_characters: int = 0,
    ) -> None:
        self._checkpoint = checkpoint
        self._admission = admission
        self._media = media
        self._router = router
        self._metrics = metrics
        self._model_name = model_name
        self._context_length = context_length
        self._default_max_tokens = api.default_max_tokens
        self.text = TextWork(api, checkpoint, lambda: self.context_length)
        self._abort_wait_s = abort_wait_s
        self._record_blocks = record_blocks
        self._log_prompt_characters = log_prompt_characters

    @property
    def context_length(self) -> int:
        """What fits: configuration, else the engines' own, never more than the checkpoint's positions."""
        asked = self._context_length or self._router.context_length
        most = self._checkpoint.max_position_embeddings
        return min(asked, most) if asked else most

    async def open(self, plan: Plan, context: RequestContext) -> Run:
        """Raises ApiError for every refusal. The caller closes the Run."""
        [run] = await self.open_all([plan], context)
        return run

    async def open_all(self, plans: Sequence[Plan], context: RequestContext) -> list[Run]:
        """All are open, or none. One place in admission for all of them; the last to close gives it back."""
        # Media come before the place: slow servers of pictures must not hold places that text could use. The media room
        # bounds that phase itself. Text is refused by a full queue before any work.
        context.usage = context.usage or RequestUsage()
        self._admission.admit(context.tenant)
        early = [await self._inputs(plan, context) if plan.media else None for plan in plans]
        place = AsyncExitStack()
        runs: list[Run] = []
        try:
            with context.step("queue"):
                permit = await place.enter_async_context(self._admission.acquire(context.tenant))
            for plan, inputs in zip(plans, early, strict=True):
                runs.append(await self._open_one(plan, inputs or await self._inputs(plan, context), context, permit))
            context.headers.update(permit.headers)
        except BaseException:
            await asyncio.gather(*(run.aclose() for run in runs))
            await place.aclose()
            raise
        left = len(runs)

        async def closed() -> None:
            nonlocal left
            left -= 1
            if not left:
                await place.aclose()

        for run in runs:
            run.on_close(closed)
        return runs

    async def _inputs(self, plan: Plan, context: RequestContext) -> _Inputs:
        began = perf_counter()
        with context.step("prompt"):
            rendered = await self.text.run(plan.text_bytes, plan.render, plan.prompt_param)
        child(self._metrics.steps, "prompt").observe(perf_counter() - began)
        if not plan.media:
            return _Inputs(rendered, [], 0.0)
        began = perf_counter()
        with context.step("media"):
            media = await self._media.prepare(plan.media, tenant=context.tenant)
        return _Inputs(rendered, media, perf_counter() - began)

    async def _open_one(self, plan: Plan, inputs: _Inputs, context: RequestContext, permit: Permit) -> Run:
        async with AsyncExitStack() as resources:
            rendered = inputs.rendered
            ids, items = await self._expand(rendered, inputs.media)
            request = self._request(plan, context, ids, items, plan.grammar(rendered), permit.priority)
            if self._record_blocks:
                names = block_names(request.input_ids, request.items, request.cache_salt, RECORD_BLOCK_TOKENS)
                context.notes["blocks"] = [int.from_bytes(name[:6], "big") for name in names]
            if self._log_prompt_characters:
                context.notes["prompt"] = self._prompt_text(rendered)
            tried: set[str] = set()
            parsers = [plan.parser(rendered) for _ in range(plan.n)]
            self._metrics.overhead.observe(perf_counter() - context.began - inputs.media_s)
            permit.charge(len(ids))
            try:
                stream = await self._send(request, plan, context, tried)
            except BaseException:
                permit.settle(-len(ids))  # the engine computed nothing
                raise
            child(self._metrics.prompt_tokens, self._model_name).observe(len(ids))
            _add_media(context, inputs.media)
            run = Run(
                stream,
                parsers,
                len(ids),
                self._model_name,
                context,
                self._metrics,
                self._abort_wait_s,
                resources.pop_all(),
                self._mover(request, plan, context, tried),
            )
            run.on_close(lambda: _settle(permit, run))
            return run
        raise AssertionError("unreachable")

    def _prompt_text(self, rendered: RenderedPrompt) -> str:
        limit = self._log_prompt_characters
        # A token is a byte or more, a character at most four.
        return self._checkpoint.decode(rendered.ids[: 4 * limit])[:limit]

    async def _timed(self, step: str, large: bool, work: Callable[[], T]) -> T:
        began = perf_counter()
        try:
            return await asyncio.to_thread(work) if large else work()
        finally:
            child(self._metrics.steps, step).observe(perf_counter() - began)

    async def _expand(self, rendered: RenderedPrompt, media: list[PreparedMedia]) -> tuple[Any, list[Item]]:
        if not media:
            return np.asarray(rendered.ids, dtype=np.uint32), []
        from gateway.prompt import expand

        total = len(rendered.ids) + sum(m.tokens for m in media)
        return await self._timed(
            "expand", total > LARGE_PROMPT_TOKENS, lambda: expand(rendered, media, self._checkpoint)
        )

    def _request(
        self,
        plan: Plan,
        context: RequestContext,
        ids: Any,
        items: list[Item],
        grammar: Grammar | None,
        tenant_priority: int,
    ) -> GenerateRequest:
        limit, prompt = self.context_length, len(ids)
        if prompt >= limit:
            raise context_exceeded(limit, prompt, plan.prompt_param)
        wanted = plan.max_tokens or self._default_max_tokens or limit
        sampling = {**plan.sampling, "max_new_tokens": min(wanted, limit - prompt)}
        if sampling.get("min_new_tokens", 0) > sampling["max_new_tokens"]:
            message = f"min_tokens is larger than what may be generated ({sampling['max_new_tokens']} tokens)"
            raise ApiError("invalid_value", message, param="min_tokens")
        used = {
            "items": bool(items),
            "logprobs": plan.logprobs is not None,
            "grammar": grammar is not None,
            "n": plan.n > 1,
        }
        return GenerateRequest(
            rid=f"{secrets.token_hex(8)}-{context.request_id[:100]}",  # a client may send one id twice
            input_ids=ids,
            sampling=sampling,
            n=plan.n,
            logprobs=plan.logprobs,
            grammar=grammar,
            cache_salt=context.tenant,
            priority=tenant_priority + plan.priority,
            traceparent=context.traceparent,
            items=tuple(items),
            require=tuple(name for name, on in used.items() if on),
        )

    async def _send(
        self, request: GenerateRequest, plan: Plan, context: RequestContext, tried: set[str]
    ) -> GenerationStream:
        """To the best worker not in `tried`; to another one when it could not be reached or has no place left. `tried`
        grows by every worker that failed. Closing the stream gives the worker's slot back."""
        long = len(request.input_ids) > LARGE_PROMPT_TOKENS
        route = await self._timed(
            "route",
            long,
            lambda: self._router.route_request(request.input_ids, request.items, request.cache_salt, plan.session),
        )
        while True:
            worker, new_tokens = self._router.pick(route, exclude=frozenset(tried))
            try:
                with ExitStack() as held:
                    ticket = held.enter_context(worker.holding(len(request.input_ids), new_tokens))
                    stream = await self._open(worker, request, plan.route, context)
                    stream.on_first_token = ticket.computed
                    stream.on_close = held.pop_all().close
                    return stream
            except ApiError as e:
                tried.add(worker.name)
                if e.code not in MOVABLE or not self._router.others(tried):
                    raise
                child(self._metrics.upstream_retries, worker.name, e.code).inc()

    def _mover(
        self, request: GenerateRequest, plan: Plan, context: RequestContext, tried: set[str]
    ) -> Callable[[str], Awaitable[GenerationStream]]:
        async def move(failed: str) -> GenerationStream:
            self._router.failed(failed)
            tried.add(failed)
            if not self._router.others(tried):
                raise ApiError("engine_unavailable", "no other engine is available")
            return await self._send(request, plan, context, tried)

        return move

    async def _open(
        self, worker: Worker, request: GenerateRequest, route: str, context: RequestContext
    ) -> GenerationStream:
        span = context.trace.engine(worker.name, self._model_name, route, request)
        if span.traceparent is not None:
            request = replace(request, traceparent=span.traceparent)
        try:
            stream = await worker.client.open(
                request, worker.known_media(i.hash for i in request.items), worker.forget_media
            )
            stream.span = span
        except BaseException as e:
            span.end(e.code if isinstance(e, ApiError) else "aborted")
            if not isinstance(e, ApiError):
                raise
            if e.code in ("engine_unavailable", "engine_error", "engine_timeout"):
                worker.failed()
            if isinstance(e, EngineUnreachable) and e.refused:
                self._router.gone(worker)
            raise
        worker.succeeded()
        worker.remember_media(request.items)
        return stream

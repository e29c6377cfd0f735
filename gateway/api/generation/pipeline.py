"""The life of a request from admission to the engine's acceptance; see architecture.md. Each step calls one room.

Everything a client can get wrong is refused here or before, so a stream and a plain answer fail alike. Cancelling
`open()` at any point (the client left) gives back what was taken.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.wire import GenerateRequest, Grammar, Item
from gateway.admission.admission import Admission, Permit
from gateway.api.context import RequestContext
from gateway.api.generation.fallback import Alternative, elsewhere
from gateway.api.generation.logprobs import TokenTexts
from gateway.api.generation.plan import Plan
from gateway.api.generation.run import Opened, Run
from gateway.api.generation.sending import LARGE_PROMPT_TOKENS, Sender, timed
from gateway.api.generation.text import TextWork, context_exceeded
from gateway.api.settings import ApiSettings
from gateway.errors import ApiError
from gateway.media.types import HeldUrl
from gateway.metrics import Metrics, child
from gateway.observability.usage import RequestUsage
from gateway.routing.blocks import block_names
from gateway.routing.router import Router

if TYPE_CHECKING:
    from gateway.media.service import MediaService
    from gateway.media.types import PreparedMedia
    from gateway.prompt import Checkpoint, RenderedPrompt

RECORD_BLOCK_TOKENS: Final = 512  # what loadtest/replay.py and public traces count in


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was made before the place: the prompt only where media had to wait for it."""

    rendered: RenderedPrompt | None = None
    media: Sequence[PreparedMedia] = ()
    media_s: float = 0.0


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
        huge_texts: Executor,
    ) -> None:
        """`huge_texts`: where the largest texts of all models become tokens."""
        self.texts = TokenTexts(checkpoint)
        self._checkpoint = checkpoint
        self._admission = admission
        self._media = media
        self._router = router
        self._metrics = metrics
        self._sender = Sender(router, metrics, model_name)
        self.model_name = model_name
        self._context_length = context_length
        self._default_max_tokens = api.default_max_tokens
        self.text = TextWork(api, checkpoint, lambda: self.context_length, huge_texts)
        self._abort_wait_s = abort_wait_s
        self._record_blocks = record_blocks
        self._log_prompt_characters = log_prompt_characters

    @property
    def context_length(self) -> int:
        """What fits: configuration, else the engines' own, never more than the checkpoint's positions."""
        asked = self._context_length or self._router.context_length
        most = self._checkpoint.max_position_embeddings
        return min(asked, most) if asked else most

    @property
    def available(self) -> bool:
        """Whether an engine would probably take a request now."""
        return not self._admission.models.full(self.model_name) and any(w.usable() for w in self._router.workers)

    async def open(self, plan: Plan, context: RequestContext, others: Sequence[Alternative] = ()) -> Run:
        """Raises ApiError for every refusal. The caller closes the Run."""
        [run] = await self.open_all([plan], context, others)
        return run

    async def open_all(
        self, plans: Sequence[Plan], context: RequestContext, others: Sequence[Alternative] = ()
    ) -> list[Run]:
        """All are open, or none, by one model: this one, else the first of `others` that can. One place in admission for
        all of them; the last to close gives it back."""
        # Media come before the place: slow servers of pictures must not hold places that text could use. The media room
        # bounds that phase itself. Text is refused by a full queue before any work.
        context.usage = context.usage or RequestUsage()
        await self._admission.admit(context.tenant, sum(len(plan.media) for plan in plans))
        inputs = [await self._early(plan, context) for plan in plans]
        permit = self._admission.acquire(context.tenant, self.model_name)
        with context.step("queue"):
            await permit.enter()
        try:
            try:
                opened = await self.start(plans, inputs, context, permit, others)
            except ApiError as e:
                opened = await elsewhere(e, others, [replace(i, rendered=None) for i in inputs], context, permit)
            context.headers.update(permit.headers)
            context.headers["x-catalejo-model"] = opened[0].model
        except BaseException:
            permit.leave()
            raise
        runs = [Run(one, context, self._metrics, self._abort_wait_s) for one in opened]
        for given in inputs:
            context.usage.add_media(given.media)
        left = len(runs)

        def closed(run: Run) -> None:
            nonlocal left
            left -= 1
            permit.settle(run.completion_tokens)
            if not left:
                permit.leave()

        for run in runs:
            run.on_close(partial(closed, run))
        return runs

    async def _early(self, plan: Plan, context: RequestContext) -> Inputs:
        if not plan.media:
            return Inputs()
        rendered = await self._render(plan, context)  # a prompt that is refused fetches nothing
        began = perf_counter()
        with context.step("media"):
            media = await self._media.prepare(plan.media, tenant=context.tenant)
        for part in plan.media:
            if isinstance(part.url, HeldUrl):
                part.url.release()
        return Inputs(rendered, media, perf_counter() - began)

    async def _render(self, plan: Plan, context: RequestContext) -> RenderedPrompt:
        began = perf_counter()
        with context.step("prompt"):
            rendered = await self.text.run(plan.text_bytes, plan.render, plan.prompt_param)
        child(self._metrics.steps, "prompt").observe(perf_counter() - began)
        return rendered

    async def start(
        self,
        plans: Sequence[Plan],
        inputs: Sequence[Inputs],
        context: RequestContext,
        permit: Permit,
        others: Sequence[Alternative],
    ) -> list[Opened]:
        """Every plan accepted by an engine of this model, or none and an ApiError. `others`: where a single request may
        go later, if its engine fails before the first token."""
        opened: list[Opened] = []
        late = others if len(plans) == 1 else ()
        try:
            for plan, given in zip(plans, inputs, strict=True):
                opened.append(await self._start_one(plan, given, context, permit, late))
        except BaseException:
            for one in opened:
                one.stream.close()
                permit.settle(-len(one.prompt))
            raise
        return opened

    async def _start_one(
        self, plan: Plan, inputs: Inputs, context: RequestContext, permit: Permit, others: Sequence[Alternative]
    ) -> Opened:
        rendered = inputs.rendered or await self._render(plan, context)
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
        await permit.charge(len(ids))
        try:
            stream = await self._sender.send(request, plan, context, tried)
        except BaseException:
            permit.settle(-len(ids))  # the engine computed nothing
            raise
        child(self._metrics.prompt_tokens, self.model_name).observe(len(ids))

        async def move(opened: Opened, failed: str, why: ApiError) -> Opened:
            self._router.failed(failed)
            tried.add(failed)
            try:
                if not self._router.others(tried):
                    raise why
                return replace(opened, stream=await self._sender.send(request, plan, context, tried))
            except ApiError as e:
                [other] = await elsewhere(e, others, [replace(inputs, rendered=None)], context, permit)
                permit.settle(-len(ids))
                return other

        return Opened(stream, parsers, ids, self.model_name, plan.model, self.texts, move)

    def _prompt_text(self, rendered: RenderedPrompt) -> str:
        limit = self._log_prompt_characters
        # A token is a byte or more, a character at most four.
        return self._checkpoint.decode(rendered.ids[: 4 * limit])[:limit]

    async def _expand(self, rendered: RenderedPrompt, media: Sequence[PreparedMedia]) -> tuple[Any, list[Item]]:
        ids = rendered.ids
        if not media and (len(ids) <= LARGE_PROMPT_TOKENS or isinstance(ids, np.ndarray)):
            return np.asarray(ids, dtype=np.uint32), []
        from gateway.prompt.expand import as_array, expand

        if not media:
            return await timed(self._metrics, "expand", True, lambda: as_array(ids)), []
        total = len(rendered.ids) + sum(m.tokens for m in media)
        large = total > LARGE_PROMPT_TOKENS
        return await timed(self._metrics, "expand", large, lambda: expand(rendered, media, self._checkpoint))

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

"""One /v1/completions request: several prompts are several runs under one place in admission."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gateway.api.completions.answer import ChoiceWriter, Style
from gateway.api.completions.echo import STEP_TOKENS, Echo, echo_of
from gateway.api.completions.protocol import CompletionRequest, Prompt, TokenIds, put_back
from gateway.api.context import RequestContext
from gateway.api.generation.fields import check_unknown
from gateway.api.generation.formats import response_format_of
from gateway.api.generation.plan import Plan
from gateway.api.generation.run import Run, Take, Update, at_once
from gateway.api.generation.sampling import priority_of, sampling_of
from gateway.api.generation.sending import LARGE_PROMPT_TOKENS, timed
from gateway.api.generation.served import ServedModel
from gateway.api.generation.service import GenerationService
from gateway.api.large import parse_any
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.parsing import OutputParser
    from gateway.prompt import Checkpoint, RenderedPrompt

ROUTE: Final = "/v1/completions"
DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's own default for this endpoint."""


class CompletionService(GenerationService):
    async def read(self, body: bytes) -> CompletionRequest:
        request = await parse_any(CompletionRequest, body, self.settings.offload_bytes, put_back)
        check_unknown(request, ROUTE, self.settings.strict_fields, self._metrics)
        if (request.n or 1) > self.settings.max_n:
            raise ApiError("invalid_value", f"'n': at most {self.settings.max_n} choices are allowed", param="n")
        if (choices := len(request.prompts()) * (request.n or 1)) > self.settings.max_choices:
            message = f"'prompt' times 'n' are {choices} choices; at most {self.settings.max_choices} are allowed"
            raise ApiError("invalid_value", message, param="prompt")
        if request.stream_options is not None and not request.stream:
            raise ApiError("invalid_value", "'stream_options' needs 'stream': true", param="stream_options")
        return request

    async def open(
        self, request: CompletionRequest, body_bytes: int, context: RequestContext
    ) -> tuple[list[Run], list[ChoiceWriter]]:
        """Runs in the order of the prompts, and one writer per choice: choice = prompt * n + i."""
        prompts = request.prompts()
        several = len(prompts) > 1
        context.notes.update(stream=bool(request.stream), n=request.n or 1)

        async def plans_of(model: ServedModel, told: str) -> list[Plan]:
            if several:
                model.pipeline.text.check_total(body_bytes, prompts, "prompt")
            all_ids = []
            for i, prompt in enumerate(prompts):
                all_ids.append(await self._ids(model, prompt, f"prompt[{i}]" if several else "prompt"))
            return [self._plan(model, request, ids, told) for ids in all_ids]

        with_ids = not all(isinstance(prompt, str) for prompt in prompts)
        runs = await self._open(request, context, request.user or "", plans_of, with_ids=with_ids)
        style = Style(request.logprobs, bool(request.echo))
        try:
            echoes = [await self._echo(run) if request.echo else None for run in runs]
        except BaseException:
            for run in runs:
                await run.aclose()
            raise
        writers = [
            ChoiceWriter(style, run, echo)
            for run, echo in zip(runs, echoes, strict=True)
            for _ in range(request.n or 1)
        ]
        return runs, writers

    async def _echo(self, run: Run) -> Echo:
        texts, prompt = run.opened.texts, run.opened.prompt
        return await timed(self._metrics, "echo", len(prompt) > STEP_TOKENS, lambda: echo_of(texts, prompt))

    def head(self) -> dict[str, Any]:
        """What every chunk begins with, but for the model."""
        return {"id": f"cmpl-{secrets.token_hex(14)}", "object": "text_completion", "created": int(time())}

    async def _ids(self, model: ServedModel, prompt: Prompt, param: str) -> TokenIds:
        if isinstance(prompt, str):
            ids = await model.pipeline.text.encode(prompt, "prompt")
            if not ids:
                raise ApiError("invalid_value", f"'{param}' is empty: nothing to continue", param=param)
            return ids
        if len(prompt) > LARGE_PROMPT_TOKENS:
            await asyncio.to_thread(_check_ids, prompt, model.checkpoint, param)
        else:
            _check_ids(prompt, model.checkpoint, param)
        return prompt

    def _plan(self, model: ServedModel, request: CompletionRequest, ids: TokenIds, told: str) -> Plan:
        from gateway.parsing import OutputParser
        from gateway.prompt import RenderedPrompt, output_grammar

        checkpoint = model.checkpoint
        response_format = response_format_of(request)

        def parser(rendered: RenderedPrompt) -> OutputParser:
            return OutputParser(
                checkpoint,
                starts_in_reasoning=False,
                parse_tools=False,
                separate_reasoning=False,
                stop=request.stop_strings,
                min_tokens=request.min_tokens or 0,
            )

        return Plan(
            route=ROUTE,
            model=told,
            render=lambda: RenderedPrompt(ids, [], False),
            parser=parser,
            grammar=lambda rendered: output_grammar(
                checkpoint, starts_in_reasoning=False, response_format=response_format
            ),
            sampling=sampling_of(request, model.defaults, checkpoint.eos_ids, checkpoint.vocab_size),
            max_tokens=request.max_tokens or DEFAULT_MAX_TOKENS,
            prompt_param="prompt",
            n=request.n or 1,
            logprobs=request.logprobs,
            priority=priority_of(request.priority, request.service_tier),
            session=request.user or "",
        )


def _check_ids(prompt: TokenIds, checkpoint: Checkpoint, param: str) -> None:
    """Raises ApiError for ids that are no tokens of text."""
    array = np.asarray(prompt)
    if int(array.max()) >= checkpoint.vocab_size:
        size = checkpoint.vocab_size
        raise ApiError("invalid_value", f"'{param}': a token id is outside the vocabulary of {size}", param=param)
    if any((array == media).any() for media in (checkpoint.image_token_id, checkpoint.video_token_id)):
        raise ApiError("invalid_value", f"'{param}' holds a media placeholder id without media", param=param)


async def deliver_all(
    runs: Sequence[Run], per_run: int, take: Take, ready: Callable[[], Awaitable[None]] = at_once
) -> None:
    """Run.deliver of all runs as they come, indices shifted to the answer's. The first failure ends it."""
    if len(runs) == 1:
        await runs[0].deliver(take, ready)
        return

    def shifted(shift: int, updates: list[Update]) -> bool:
        for update in updates:
            update.index += shift
        return take(updates)

    tasks = [asyncio.create_task(run.deliver(partial(shifted, i * per_run), ready)) for i, run in enumerate(runs)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""One chat completion, as the numbered life of a request (architecture.md)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.wire import Grammar
from gateway.api.chat.messages import MessageMapper, put_back
from gateway.api.chat.protocol import ChatRequest, NamedTool
from gateway.api.chat.stream import ChunkStyle
from gateway.api.chat.thinking import template_kwargs, thinking_mode
from gateway.api.chat.tools import check_tools, offered
from gateway.api.context import RequestContext
from gateway.api.generation.fields import check_unknown
from gateway.api.generation.formats import response_format_of
from gateway.api.generation.plan import Plan
from gateway.api.generation.run import Run, Update
from gateway.api.generation.sampling import priority_of, sampling_of
from gateway.api.generation.served import ServedModel
from gateway.api.generation.service import GenerationService
from gateway.api.large import parse_any
from gateway.errors import ApiError
from gateway.media.types import url_bytes

if TYPE_CHECKING:
    from gateway.parsing import OutputParser
    from gateway.prompt import Checkpoint, RenderedPrompt

ROUTE: Final = "/v1/chat/completions"
MOST_CALLS: Final = 1 << 30


class ChatService(GenerationService):
    async def read(self, body: bytes) -> ChatRequest:
        """1. Bytes -> a checked request."""
        request = await parse_any(ChatRequest, body, self.settings.offload_bytes, put_back)
        check_unknown(request, ROUTE, self.settings.strict_fields, self._metrics)
        return request

    async def open(self, request: ChatRequest, body_bytes: int, context: RequestContext) -> Run:
        """2-6. Admission, prompt, media, routing, engine."""
        context.notes.update(stream=bool(request.stream), n=request.n or 1)

        async def plans_of(model: ServedModel, told: str) -> Sequence[Plan]:
            plan = self.plan(model, request, body_bytes, context.tenant, told)
            context.notes["media"] = len(plan.media)
            return [plan]

        [run] = await self._open(request, context, _session(request), plans_of)
        return run

    async def prompt_ids(
        self, request: ChatRequest, body_bytes: int, tenant: str
    ) -> tuple[ServedModel, list[int] | NDArray[np.uint32]]:
        """The prompt alone, one placeholder per media part, and the model it is for."""
        model = self._catalogue.target(request.model, tenant).first
        plan = self.plan(model, request, body_bytes, tenant, model.name)
        return model, (await model.pipeline.text.run(plan.text_bytes, plan.render, plan.prompt_param)).ids

    def plan(self, model: ServedModel, request: ChatRequest, body_bytes: int, tenant: str, told: str) -> Plan:
        """Everything decided before anything is done; `told` is the answer's `model`. Raises ApiError."""
        from gateway.prompt import output_grammar

        self._check_limits(request)
        checkpoint = model.checkpoint
        mapper = MessageMapper(request)
        tools, tool_choice = offered(request)
        size = body_bytes - sum(url_bytes(part.url or "") for part in mapper.media)
        model.pipeline.text.check(size, (mapper.messages, tools, request.chat_template_kwargs), "messages")
        most_tokens = model.pipeline.context_length
        response_format = response_format_of(request)
        mode = thinking_mode(request, self.settings.default_thinking)
        structured = response_format is not None or tool_choice not in (None, "none", "auto")
        continued = bool(request.continue_final_message)

        def render() -> RenderedPrompt:
            return model.builder.render(
                mapper.messages,
                tools=tools or None,
                thinking_mode=mode,
                add_generation_prompt=request.add_generation_prompt is not False,
                continue_final_message=continued,
                template_kwargs=template_kwargs(request),
                scope=tenant,
                most_tokens=most_tokens,
            )

        def parser(rendered: RenderedPrompt) -> OutputParser:
            return self._parser(model.checkpoint, request, tools, rendered, structured)

        def grammar(rendered: RenderedPrompt) -> Grammar | None:
            try:
                return output_grammar(
                    checkpoint,
                    starts_in_reasoning=rendered.starts_in_reasoning,
                    tools=tools or None,
                    tool_choice=tool_choice,
                    parallel=request.parallel_tool_calls is not False,
                    response_format=response_format,
                )
            except TypeError as e:  # a schema with integers beyond 64 bits, or nested too deeply
                raise ApiError("invalid_schema", f"a tool's parameters cannot be used: {e}", param="tools") from None

        return Plan(
            route=ROUTE,
            model=told,
            render=render,
            parser=parser,
            grammar=grammar,
            sampling=sampling_of(request, model.defaults, checkpoint.eos_ids, checkpoint.vocab_size),
            max_tokens=request.max_completion_tokens or request.max_tokens,
            prompt_param="messages",
            media=mapper.media,
            n=request.n or 1,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            priority=priority_of(request.priority, request.service_tier),
            session=_session(request),
            text_bytes=size,
        )

    def style(self, request: ChatRequest, run: Run) -> ChunkStyle:
        """7. How the answer is written. What depends on the model is asked of `run` when the first token is there, since
        up to then it may move to another."""
        chunk = "chat.completion.chunk" if request.stream else "chat.completion"
        head = {
            "id": f"chatcmpl-{secrets.token_hex(14)}",
            "object": chunk,
            "created": int(time()),
        }
        if request.service_tier is not None:
            head["service_tier"] = "default" if request.service_tier == "auto" else request.service_tier
        top = request.top_logprobs or 0

        def rows(given: Sequence[Any]) -> list[dict[str, Any]]:
            return run.opened.texts.chat_rows(given, top)

        return ChunkStyle(
            head=head,
            reasoning_fields=self._reasoning_fields(request),
            finish_name=self._finish_name(request),
            rows=rows if request.logprobs else None,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
            most_calls=1 if request.parallel_tool_calls is False else MOST_CALLS,
        )

    def _reasoning_fields(self, request: ChatRequest) -> tuple[str, ...]:
        if request.include_reasoning is False:
            return ()
        chosen = self.settings.reasoning_field
        return ("reasoning_content", "reasoning") if chosen == "both" else (chosen,)

    def _finish_name(self, request: ChatRequest) -> Any:
        named = isinstance(request.tool_choice, NamedTool)
        with_call = self.settings.named_tool_finish_reason if named else "tool_calls"

        def name(update: Update, saw_call: bool) -> str:
            return with_call if saw_call and update.finish == "stop" else update.finish or "stop"

        return name

    def _parser(
        self,
        checkpoint: Checkpoint,
        request: ChatRequest,
        tools: Sequence[Mapping[str, Any]],
        rendered: RenderedPrompt,
        structured: bool,
    ) -> OutputParser:
        from gateway.parsing import OutputParser, ToolSpec

        specs = [ToolSpec(t["function"]["name"], t["function"].get("parameters")) for t in tools]
        return OutputParser(
            checkpoint,
            starts_in_reasoning=rendered.starts_in_reasoning,
            tools=specs,
            parse_tools=bool(specs),
            stop=request.stop_strings,
            min_tokens=request.min_tokens or 0,
            separate_reasoning=request.separate_reasoning is not False,
            structured=structured,
        )

    def _check_limits(self, request: ChatRequest) -> None:
        s = self.settings
        if (n := request.n or 1) > s.max_n:
            raise ApiError("invalid_value", f"'n' is {n}; at most {s.max_n} choices are allowed", param="n")
        if len(request.messages) > s.max_messages:
            raise ApiError("invalid_value", f"at most {s.max_messages} messages are allowed", param="messages")
        if request.top_logprobs is not None and not request.logprobs:
            raise ApiError("invalid_value", "'top_logprobs' needs 'logprobs': true", param="top_logprobs")
        if request.stream_options is not None and not request.stream:
            raise ApiError("invalid_value", "'stream_options' needs 'stream': true", param="stream_options")
        if request.metadata and len(json.dumps(request.metadata)) > 16384:
            raise ApiError("string_above_max_length", "'metadata' is larger than 16384 bytes", param="metadata")
        if request.continue_final_message and request.messages[-1].content and response_format_of(request):
            message = "'continue_final_message' and 'response_format': a grammar cannot hold what was begun elsewhere"
            raise ApiError("invalid_value", message, param="continue_final_message")
        check_tools(request, self.settings)


def _session(request: ChatRequest) -> str:
    return request.prompt_cache_key or request.user or ""

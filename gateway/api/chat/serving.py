"""One chat completion, as the numbered life of a request (architecture.md)."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any, Final

from engine.wire import Grammar
from gateway.api.body import parse
from gateway.api.chat.messages import MessageMapper, put_back_urls
from gateway.api.chat.protocol import ChatRequest, NamedTool
from gateway.api.chat.stream import ChunkStyle
from gateway.api.chat.thinking import template_kwargs, thinking_mode
from gateway.api.context import RequestContext
from gateway.api.generation.fields import check_unknown
from gateway.api.generation.formats import response_format_of
from gateway.api.generation.logprobs import TokenTexts
from gateway.api.generation.pipeline import Pipeline
from gateway.api.generation.plan import Plan
from gateway.api.generation.run import Run, Update
from gateway.api.generation.sampling import priority_of, sampling_of
from gateway.api.large import parse_large
from gateway.api.models.names import ModelNames
from gateway.api.settings import ApiSettings
from gateway.errors import ApiError
from gateway.metrics import Metrics

if TYPE_CHECKING:
    from gateway.parsing import OutputParser
    from gateway.prompt import Checkpoint, PromptBuilder, RenderedPrompt

ROUTE: Final = "/v1/chat/completions"
MOST_CALLS: Final = 1 << 30


class ChatService:
    def __init__(
        self,
        settings: ApiSettings,
        names: ModelNames,
        checkpoint: Checkpoint,
        builder: PromptBuilder,
        pipeline: Pipeline,
        defaults: Mapping[str, Any],
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self._names = names
        self._checkpoint = checkpoint
        self._builder = builder
        self._pipeline = pipeline
        self._defaults = defaults
        self._metrics = metrics
        self._texts = TokenTexts(checkpoint)

    async def read(self, body: bytes) -> ChatRequest:
        """1. Bytes -> a checked request."""
        if len(body) > self.settings.offload_bytes:
            request = await asyncio.to_thread(parse_large, ChatRequest, body, put_back_urls)
        else:
            request = parse(ChatRequest, body)
        self._names.check(request.model)
        check_unknown(request, ROUTE, self.settings.strict_fields, self._metrics)
        return request

    async def open(self, request: ChatRequest, body_bytes: int, context: RequestContext) -> Run:
        """2-6. Admission, prompt, media, routing, engine."""
        plan = self.plan(request, body_bytes, context.tenant)
        context.notes.update(model=self._names.served, stream=bool(request.stream), n=plan.n, media=len(plan.media))
        return await self._pipeline.open(plan, context)

    async def prompt_ids(self, request: ChatRequest, body_bytes: int, tenant: str) -> list[int]:
        """The prompt alone, one placeholder per media part."""
        plan = self.plan(request, body_bytes, tenant)
        return (await self._pipeline.text.run(plan.text_bytes, plan.render, plan.prompt_param)).ids

    def plan(self, request: ChatRequest, body_bytes: int, tenant: str) -> Plan:
        """Everything decided before anything is done. Raises ApiError."""
        from gateway.prompt import output_grammar

        self._check_limits(request)
        mapper = MessageMapper(request)
        tools = [t.model_dump(exclude_none=True) for t in request.tools or ()]
        size = body_bytes - sum(len(part.url or "") for part in mapper.media)
        self._pipeline.text.check(size, (mapper.messages, tools, request.chat_template_kwargs), "messages")
        most_tokens = self._pipeline.context_length
        offered = [] if request.tool_choice == "none" else tools
        choice = request.tool_choice
        tool_choice = choice.model_dump() if isinstance(choice, NamedTool) else choice
        response_format = response_format_of(request)
        mode = thinking_mode(request, self.settings.default_thinking)
        structured = response_format is not None or tool_choice not in (None, "none", "auto")
        continued = bool(request.continue_final_message)

        def render() -> RenderedPrompt:
            return self._builder.render(
                mapper.messages,
                tools=offered or None,
                thinking_mode=mode,
                add_generation_prompt=request.add_generation_prompt is not False,
                continue_final_message=continued,
                template_kwargs=template_kwargs(request),
                scope=tenant,
                most_tokens=most_tokens,
            )

        def parser(rendered: RenderedPrompt) -> OutputParser:
            return self._parser(request, offered, rendered, structured)

        def grammar(rendered: RenderedPrompt) -> Grammar | None:
            try:
                return output_grammar(
                    self._checkpoint,
                    starts_in_reasoning=rendered.starts_in_reasoning,
                    tools=offered or None,
                    tool_choice=tool_choice,
                    parallel=request.parallel_tool_calls is not False,
                    response_format=response_format,
                )
            except TypeError as e:  # a schema with integers beyond 64 bits, or nested too deeply
                raise ApiError("invalid_schema", f"a tool's parameters cannot be used: {e}", param="tools") from None

        vocab = self._checkpoint.vocab_size
        return Plan(
            route=ROUTE,
            render=render,
            parser=parser,
            grammar=grammar,
            sampling=sampling_of(request, self._defaults, self._checkpoint.eos_ids, vocab),
            max_tokens=request.max_completion_tokens or request.max_tokens,
            prompt_param="messages",
            media=mapper.media,
            n=request.n or 1,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            priority=priority_of(request.priority, request.service_tier),
            session=request.prompt_cache_key or request.user or "",
            text_bytes=size,
        )

    def style(self, request: ChatRequest) -> ChunkStyle:
        """7. How the answer is written."""
        chunk = "chat.completion.chunk" if request.stream else "chat.completion"
        head = {
            "id": f"chatcmpl-{secrets.token_hex(14)}",
            "object": chunk,
            "created": int(time()),
            "model": request.model,
        }
        if request.service_tier is not None:
            head["service_tier"] = "default" if request.service_tier == "auto" else request.service_tier
        top = request.top_logprobs or 0

        def rows(given: Sequence[Any]) -> list[dict[str, Any]]:
            return self._texts.chat_rows(given, top)

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
        named = request.tool_choice is not None and not isinstance(request.tool_choice, str)
        with_call = self.settings.named_tool_finish_reason if named else "tool_calls"

        def name(update: Update, saw_call: bool) -> str:
            return with_call if saw_call and update.finish == "stop" else update.finish or "stop"

        return name

    def _parser(
        self, request: ChatRequest, tools: Sequence[Mapping[str, Any]], rendered: RenderedPrompt, structured: bool
    ) -> OutputParser:
        from gateway.parsing import OutputParser, ToolSpec

        specs = [ToolSpec(t["function"]["name"], t["function"].get("parameters")) for t in tools]
        return OutputParser(
            self._checkpoint,
            starts_in_reasoning=rendered.starts_in_reasoning,
            tools=specs,
            parse_tools=bool(specs),
            stop=request.stop_strings,
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
        self._check_tools(request)

    def _check_tools(self, request: ChatRequest) -> None:
        s = self.settings
        if request.tools is not None and not request.tools and s.empty_tools == "refuse":
            raise ApiError("invalid_value", "'tools' is an empty list; leave it out", param="tools")
        if len(request.tools or ()) > s.max_tools:
            raise ApiError("invalid_value", f"at most {s.max_tools} tools are allowed", param="tools")
        names = [t.function.name for t in request.tools or ()]
        for i, name in enumerate(names):
            if name in names[:i]:
                param = f"tools[{i}].function.name"
                raise ApiError("invalid_value", f"'{param}': another tool is named {name!r} too", param=param)
        choice = request.tool_choice
        if choice in (None, "none", "auto"):
            return
        if not names:
            raise ApiError("invalid_value", "'tool_choice' needs 'tools'", param="tool_choice")
        if not isinstance(choice, str) and choice is not None and choice.function.name not in names:
            message = f"'tool_choice' names {choice.function.name[:128]!r}, which is not in 'tools'"
            raise ApiError("invalid_value", message, param="tool_choice.function.name")

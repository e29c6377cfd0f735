"""One generation that the engine has accepted: its replies become parsed updates and usage.

A `Run` owns the place in admission, the worker's slot and the engine's stream; `aclose()` gives all back and aborts
the engine request when it is not finished. Streaming and non-streaming answers both come from `deliver()`.

An engine that breaks off before its first token costs nobody an answer: the request moves to another engine, once per
engine, or to another model where the name has one. After the first token it never does, since the client has seen part
of an answer.

Stop strings are matched here, not by the engine: when every choice still open has matched one, the engine is asked to
abort. For at most `abort_wait_s` its last lines are awaited, since they hold the true cached_tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.wire import Failure, Finish, Reply, Tokens
from gateway.api.context import RequestContext
from gateway.errors import ERRORS, ApiError
from gateway.metrics import Metrics, child
from gateway.observability.tracing import NO_SPAN
from gateway.parsing.events import Event, StopMatched
from gateway.upstream.stream import GenerationStream

if TYPE_CHECKING:
    from gateway.api.generation.logprobs import TokenTexts
    from gateway.parsing import OutputParser

FinishReason = Literal["stop", "length"]
MOVABLE: Final = frozenset({"engine_error", "engine_timeout", "engine_unavailable", "overloaded", "shutting_down"})


class Update(Struct):
    """What is new in one choice. `finish` is set in its last update."""

    index: int
    events: list[Event]
    finish: FinishReason | None = None
    matched: str | int | None = None


Take = Callable[[list[Update]], bool]
"""Takes what is new. False: its reader is slower than the engine."""


async def at_once() -> None:
    """For a reader that is never slower."""


@dataclass(slots=True)
class Choice:
    parser: OutputParser
    completion_tokens: int = 0
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """What an engine has accepted.

    model       the model that serves it; `told`: what the answer calls it
    prompt      its token ids, media expanded
    move        (this, engine that failed, why) -> the same request elsewhere; raises ApiError when there is nowhere. It is
                given this, since holding it would make a cycle that keeps the whole request until the collector comes
    """

    stream: GenerationStream
    parsers: list[OutputParser]
    prompt: NDArray[np.uint32]
    model: str
    told: str
    texts: TokenTexts
    move: Callable[[Opened, str, ApiError], Awaitable[Opened]]


class Run:
    def __init__(self, opened: Opened, context: RequestContext, metrics: Metrics, abort_wait_s: float) -> None:
        self.cached_tokens = 0
        self._context = context
        self._metrics = metrics
        self._abort_wait_s = abort_wait_s
        self._on_close: Callable[[], None] | None = None
        self._first: float | None = None
        self._last = 0.0
        self._closed = False
        self._take_over(opened)

    def _take_over(self, opened: Opened) -> None:
        self.opened = opened
        self.choices = [Choice(p) for p in opened.parsers]
        self._stream = opened.stream
        self._open = len(opened.parsers)
        self._cut = False
        self._model = opened.model
        self._context.notes["model"] = opened.model
        self._gaps = child(self._metrics.itl, opened.model)

    @property
    def prompt_tokens(self) -> int:
        return len(self.opened.prompt)

    @property
    def completion_tokens(self) -> int:
        return sum(c.completion_tokens for c in self.choices)

    @property
    def reasoning_tokens(self) -> int:
        return sum(c.parser.reasoning_tokens for c in self.choices)

    async def deliver(self, take: Take, ready: Callable[[], Awaitable[None]] = at_once) -> None:
        """Gives `take` everything that one read of the engine's stream brought, in order, until the end. When it returns
        False, it gets nothing more before `ready()` has come back. Raises ApiError when the engine fails."""
        while True:
            try:
                while not await self._stream.deliver(partial(self._arrived, take)):
                    if not self._open:
                        await self._collect_usage()
                        return
                    await ready()
                if self._open:
                    self._stream.broke()
                    raise ApiError("engine_error", "the engine ended its answer before every choice was finished")
                self._stream.succeeded()
                return
            except ApiError as e:
                self._end_span(e.code)
                if not await self._moved(e):
                    raise

    async def _moved(self, failure: ApiError) -> bool:
        """After a failure of the engine before its first token: whether the request runs on another one now."""
        name = self._stream.client.name
        if self._stream.tokens_seen or failure.code not in MOVABLE:
            return False
        if self._context.too_late:
            return False
        child(self._metrics.upstream_retries, name, failure.code).inc()
        self._stream.close()
        try:
            moved = await self.opened.move(self.opened, name, failure)
        except ApiError:
            return False
        if moved.model != self._model:
            child(self._metrics.model_fallbacks, self._model, moved.model).inc()
        self._take_over(moved)
        return True

    def _arrived(self, take: Take, replies: list[Reply]) -> bool:
        now = perf_counter()
        if self._first is None:
            self._first = now
            child(self._metrics.ttft, self._model).observe(now - self._context.began)
            self._context.notes.setdefault("ttft_ms", round((now - self._context.began) * 1000, 2))
        else:
            self._gaps.observe(now - self._last)
        self._last = now
        out: list[Update] = []
        failure: ApiError | None = None
        try:
            for reply in replies:
                self._take(reply, out)
        except ApiError as e:
            failure = e  # what came before it still goes out
        more = take(out) if out else True
        if failure is not None:
            raise failure
        return more and self._open > 0

    def _take(self, reply: Reply, out: list[Update]) -> None:
        match reply:
            case Tokens(index, ids, logprobs, cached):
                choice = self._choice(index)
                self._stream.tokens_seen = True
                if cached is not None and index == 0:
                    self.cached_tokens = cached
                if choice.finish is not None:
                    return  # on its way while the stop string was found
                parser = choice.parser
                events = parser.feed(ids, logprobs)
                choice.completion_tokens = parser.tokens
                if parser.stopped is not None:
                    self._cut = True
                    self._finish(index, choice, "stop", [e for e in events if not isinstance(e, StopMatched)], out)
                elif events:
                    out.append(Update(index, events))
            case Finish(index, kind, usage, matched):
                choice = self._choice(index)
                self._stream.tokens_seen = True  # an answer of no tokens is an answer: it must not come twice
                if index == 0:
                    self.cached_tokens = usage.cached_tokens
                if choice.finish is not None:
                    return
                if kind == "abort":
                    raise ApiError("engine_error", "the engine ended the request before it was finished")
                choice.completion_tokens = usage.completion_tokens
                events = choice.parser.finish(truncated=kind == "length")
                events = [e for e in events if not isinstance(e, StopMatched)]
                reason: FinishReason = "stop" if choice.parser.stopped is not None else kind
                self._finish(index, choice, reason, events, out, matched)
            case Failure("bad_request", message, _):  # found out after the 200: a schema, a length
                raise ApiError("engine_refused", f"the engine refused the request: {message}")
            case Failure(code, message, _):
                child(self._metrics.upstream_failures, self._stream.client.name, "engine_error").inc()
                self._stream.broke()
                # "internal_error" is ours to say: 500 would blame the gateway.
                known = code if code != "internal_error" and ERRORS.get(code, (0,))[0] >= 500 else "engine_error"
                raise ApiError(known, f"the engine failed: {message}")

    def _choice(self, index: int) -> Choice:
        if not 0 <= index < len(self.choices):
            raise ApiError("engine_error", "the engine answered for a choice that was not asked for")
        return self.choices[index]

    def _finish(
        self,
        index: int,
        choice: Choice,
        reason: FinishReason,
        events: list[Event],
        out: list[Update],
        matched: int | None = None,
    ) -> None:
        choice.finish = reason
        self._open -= 1
        child(self._metrics.finishes, self._model, reason).inc()
        out.append(Update(index, events, reason, choice.parser.stopped or matched))

    async def _collect_usage(self) -> None:
        if self._cut:
            await self._stream.client.abort(self._stream.rid, "stop_string")
        try:
            async with asyncio.timeout(self._abort_wait_s):
                await self._stream.deliver(self._usage)
                self._stream.succeeded()
        except (TimeoutError, ApiError):
            return  # the answer is complete; only the engine's last word is missing

    def _usage(self, replies: list[Reply]) -> bool:
        for reply in replies:
            if isinstance(reply, Finish) and reply.index == 0:
                self.cached_tokens = reply.usage.cached_tokens
        return True

    def on_close(self, callback: Callable[[], None]) -> None:
        """Called once everything else is given back."""
        self._on_close = callback

    async def aclose(self) -> None:
        """Gives everything back; aborts what is unfinished. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if not self._stream.finished:
            child(self._metrics.upstream_aborts, self._stream.client.name, "closed").inc()
        self._account()
        self._end_span(None if not self._open or self._stream.finished else "aborted")
        self._stream.close()
        on_close, self._on_close = self._on_close, None  # it holds this run
        if on_close is not None:
            on_close()

    def _end_span(self, error: str | None) -> None:
        span = self._stream.span
        if span is NO_SPAN:
            return
        span.set(
            {
                "gen_ai.usage.output_tokens": self.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": self.cached_tokens,
                "gen_ai.usage.reasoning.output_tokens": self.reasoning_tokens,
                "gen_ai.response.finish_reasons": [c.finish or "error" for c in self.choices],
            }
        )
        span.end(error)

    def _account(self) -> None:
        now = perf_counter()
        count, model = self.completion_tokens, self._model
        reasoning = self.reasoning_tokens
        for kind, value in (
            ("input", self.prompt_tokens),
            ("output", count),
            ("cached_input", self.cached_tokens),
            ("reasoning", reasoning),
        ):
            child(self._metrics.tokens, model, kind).inc(value)
        if self._first is not None and count > 1:
            child(self._metrics.tpot, model).observe((self._last - self._first) / (count - 1))
        child(self._metrics.generation_duration, model).observe(now - self._context.began)
        notes, name = self._context.notes, self._stream.client.name
        # A request may have several runs, here and there.
        known = notes.get("worker", "").split(",")
        notes["worker"] = name if known == [""] else ",".join(dict.fromkeys([*known, name]))
        if (usage := self._context.usage) is not None:
            usage.prompt_tokens += self.prompt_tokens
            usage.completion_tokens += count
            usage.cached_tokens += self.cached_tokens
            usage.reasoning_tokens += reasoning

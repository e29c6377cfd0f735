"""The replies of one accepted generation, as they arrive: when they are late, when the engine broke off, when it is over.

Not here: sending the request (client.py), and what the replies mean (gateway/api/generation/run.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal

from engine.wire import BadReply, Reply, ReplyReader
from gateway.errors import ApiError
from gateway.observability.tracing import NO_SPAN, EngineSpan
from gateway.upstream.http import Answer
from gateway.upstream.settings import UpstreamSettings
from gateway.upstream.stock import StockReader

if TYPE_CHECKING:
    from gateway.upstream.client import EngineClient

Phase = Literal["connect", "accept", "silence", "first_token", "token", "total"]
PHASES: Final[Mapping[Phase, tuple[str, str]]] = {
    "connect": ("took no connection", "connect_timeout_s"),
    "accept": ("did not accept the request", "accept_timeout_s"),
    "silence": ("sent nothing, not even a keep-alive,", "idle_timeout_s"),
    "first_token": ("gave no first token", "first_token_timeout_s"),
    "token": ("gave no next token", "token_timeout_s"),
    "total": ("did not finish the answer", "total_timeout_s"),
}


class EngineTimeout(ApiError):
    """The engine took too long in one phase of a request; the message names it, its limit and the setting."""

    def __init__(self, phase: Phase, limit_s: float) -> None:
        what, setting = PHASES[phase]
        super().__init__("engine_timeout", f"the engine {what} within {limit_s:g} s (upstream.{setting})")
        self.phase = phase


class GenerationStream:
    """The replies of one request. `deliver` until it says that this was all, then `close()`, which is safe to call twice."""

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
        self._due = until
        self.on_first_token: Callable[[], None] | None = None
        self.on_success: Callable[[], None] | None = None
        """The answer came to its end. Acceptance is no success: an engine may take everything and finish nothing."""
        self.on_failure: Callable[[], None] | None = None
        self.on_close: Callable[[], None] | None = None
        self.span: EngineSpan = NO_SPAN
        self.began = False
        self.tokens_seen = False
        """Set by the reader of the replies: the request can no longer be moved to another engine."""

    async def deliver(self, take: Callable[[list[Reply]], bool]) -> bool:
        """Gives `take` every reply that arrives, in lists, without a task switch where it can: True at the answer's end,
        False when `take` wants no more for now. Raises ApiError when the engine breaks off or takes too long, and what
        `take` raises."""
        response, reader, clock, token_s = self._response, self._reader, self._clock, self._times.token_timeout_s
        # Of the next token: from when the reader is back, however slow it is.
        self._due = min(clock() + token_s if self.began else self._first_until, self.until)

        def arrived(data: bytes) -> bool:
            more = True
            if replies := reader.feed(data):
                first = not self.began
                if first:
                    self._begin()
                more = take(replies)
                if reader.ended:
                    return False
                now = clock()
                self._due = min(now + token_s, self.until)
                if first:
                    response.look_again()
            else:
                now = clock()
            if now >= self._due:  # a stream of keep-alives, or one that never ends
                raise TimeoutError
            return more

        try:
            if not await response.deliver(arrived, lambda: self._due) and not reader.ended:
                return False
            if not reader.ended:  # what comes after the end is nobody's, whether it came with the same read or later
                reader.finish()
            # The chunked body's last bytes let the connection go back to the pool; mostly they are here already.
            response.settle()
        except BadReply:
            self.broke()
            raise ApiError("engine_error", "the engine's answer broke off or was not understood") from None
        except TimeoutError:
            if not reader.ended:
                self.broke()
                raise self._late() from None
        except OSError:
            if not reader.ended:
                self.broke()
                raise ApiError("engine_error", "the connection to the engine broke during the answer") from None
        return True

    def _begin(self) -> None:
        self.began = True
        self.span.first_token()
        if self.on_first_token is not None:
            self.on_first_token()

    def succeeded(self) -> None:
        """Everything that was asked for has come."""
        if self.on_success is not None:
            self.on_success()

    def broke(self) -> None:
        """The engine failed this answer. Before the first token the request may move, and who moves it counts the failure."""
        if self.tokens_seen and self.on_failure is not None:
            self.on_failure()

    def _late(self) -> EngineTimeout:
        """Which limit it was."""
        now, times = self._clock(), self._times
        if now >= self.until:
            return EngineTimeout("total", times.total_timeout_s)
        if now >= self._due:
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

"""Updates -> chat.completion.chunk events. The hot path: one content delta is one JSON string between two constants.

Per choice: first a delta with the role; then deltas; then one with the finish_reason, which is null until then. Rows of
logprobs wait for the next delta of their choice, so that their sum equals completion_tokens. All that one read of the
engine's stream brought is returned as one piece of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine.wire import LogprobRow
from gateway.api import sse
from gateway.api.generation.run import Run, Update
from gateway.api.generation.usage import usage_of
from gateway.parsing.events import (
    ContentDelta,
    ReasoningDelta,
    StopMatched,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStart,
)

FinishName = Callable[[Update, bool], str]


@dataclass(frozen=True, slots=True)
class ChunkStyle:
    """head            the members every chunk begins with, but for `model`: id, object, created, ...
    reasoning_fields   names under which reasoning goes out; empty: it is left out
    finish_name        (update, saw a tool call) -> finish_reason
    rows               logprob rows -> OpenAI's, or None when not asked for
    most_calls         later calls of an answer are dropped
    """

    head: dict[str, Any]
    reasoning_fields: tuple[str, ...]
    finish_name: FinishName
    rows: Callable[[Sequence[LogprobRow]], list[dict[str, Any]]] | None
    include_usage: bool
    continuous_usage: bool
    most_calls: int


@dataclass(slots=True)
class _Choice:
    prefix: bytes = b""
    started: bool = False
    saw_call: bool = False
    rows: list[LogprobRow] = field(default_factory=list)


class ChunkWriter:
    def __init__(self, style: ChunkStyle, choices: int) -> None:
        self._style = style
        self._choices = [_Choice() for _ in range(choices)]
        self._head = b""

    def _begin(self, run: Run) -> None:
        """Only now it is sure which model answers."""
        head = self._head = orjson.dumps({**self._style.head, "model": run.opened.told})[:-1]
        for i, choice in enumerate(self._choices):
            choice.prefix = b"data: " + head + b',"choices":[{"index":%d,"delta":' % i

    async def write(self, run: Run, client: sse.Client) -> None:
        """The whole stream, [DONE] included. Closes the run on every path."""

        def take(updates: list[Update]) -> bool:
            if not self._head:
                self._begin(run)
            tail = self._usage_tail(run) if self._style.continuous_usage else b"}\n\n"
            out: list[bytes] = []
            for update in updates:
                self._update(update, tail, out)
            return client.write(b"".join(out)) if out else True

        try:
            await run.deliver(take, client.ready)
            if self._style.include_usage:
                usage = orjson.dumps(usage_of(run))
                client.write(b"data: " + self._head + b',"choices":[],"usage":' + usage + b"}\n\n" + sse.DONE)
            else:
                client.write(sse.DONE)
        finally:
            await run.aclose()

    def _usage_tail(self, run: Run) -> bytes:
        return b',"usage":' + orjson.dumps(usage_of(run)) + b"}\n\n"

    def _update(self, update: Update, tail: bytes, out: list[bytes]) -> None:
        choice = self._choices[update.index]
        for event in update.events:
            match event:
                case ContentDelta(text):
                    delta = b'{"content":' + orjson.dumps(text) + b"}"
                case ReasoningDelta(text):
                    if not self._style.reasoning_fields:
                        continue
                    delta = orjson.dumps(dict.fromkeys(self._style.reasoning_fields, text))
                case ToolCallArguments(index=index) | ToolCallStart(index=index) if index >= self._style.most_calls:
                    continue
                case ToolCallArguments(index, text):
                    delta = b'{"tool_calls":[{"index":%d,"function":{"arguments":' % index
                    delta += orjson.dumps(text) + b"}}]}"
                case ToolCallStart(index, call_id, name):
                    choice.saw_call = True
                    function = {"name": name, "arguments": ""}
                    call = {"index": index, "id": call_id, "type": "function", "function": function}
                    delta = orjson.dumps({"tool_calls": [call]})
                case TokenLogprobs(rows):
                    choice.rows.extend(rows)
                    continue
                case StopMatched():
                    continue
            if not choice.started:
                self._role(choice, out, tail, isinstance(event, ContentDelta))
            logprobs = self._logprobs(choice) if choice.rows else b',"logprobs":null'
            out.append(b'%b%b%b,"finish_reason":null}]%b' % (choice.prefix, delta, logprobs, tail))
        if update.finish is not None:
            if not choice.started:
                self._role(choice, out, tail, text=True)
            reason = self._style.finish_name(update, choice.saw_call)
            ending = b',"finish_reason":' + orjson.dumps(reason) + b"}]" + tail
            out.append(choice.prefix + b"{}" + self._logprobs(choice) + ending)

    def _role(self, choice: _Choice, out: list[bytes], tail: bytes, text: bool) -> None:
        choice.started = True
        content = b'""' if text else b"null"
        delta = b'{"role":"assistant","content":' + content + b'},"logprobs":null,"finish_reason":null}]'
        out.append(choice.prefix + delta + tail)

    def _logprobs(self, choice: _Choice) -> bytes:
        if self._style.rows is None or not choice.rows:
            return b',"logprobs":null'
        rows = self._style.rows(choice.rows)
        choice.rows.clear()
        return b',"logprobs":' + orjson.dumps({"content": rows, "refusal": None})

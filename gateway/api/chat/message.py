"""The plain answer: the same updates as a stream's, gathered into one message per choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.api.chat.stream import ChunkStyle
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


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Gathered:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    rows: list[bytes] = field(default_factory=list)
    """Logprobs as JSON, made as they come: all at the end would hold the event loop, and objects are many times larger."""
    finish: str | None = None

    def take(self, update: Update, style: ChunkStyle) -> None:
        for event in update.events:
            match event:
                case ContentDelta(text):
                    self.content.append(text)
                case ReasoningDelta(text):
                    self.reasoning.append(text)
                case ToolCallArguments(index=index) | ToolCallStart(index=index) if index >= style.most_calls:
                    pass
                case ToolCallStart(index, call_id, name):
                    self.calls[index] = _Call(call_id, name)
                case ToolCallArguments(index, text):
                    self.calls[index].arguments.append(text)
                case TokenLogprobs(rows):
                    if style.rows is not None:
                        self.rows.append(orjson.dumps(style.rows(rows))[1:-1])
                case StopMatched():
                    pass
        if update.finish is not None:
            self.finish = style.finish_name(update, bool(self.calls))

    def message(self, reasoning_fields: tuple[str, ...]) -> dict[str, Any]:
        text = "".join(self.content)
        out: dict[str, Any] = {"role": "assistant", "content": text or (None if self.calls else ""), "refusal": None}
        if self.reasoning:
            out.update(dict.fromkeys(reasoning_fields, "".join(self.reasoning)))
        if self.calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": "".join(c.arguments)}}
                for _, c in sorted(self.calls.items())
            ]
        return out


async def whole_answer(run: Run, style: ChunkStyle) -> dict[str, Any]:
    """Closes the run on every path."""
    gathered = [_Gathered() for _ in run.choices]

    def take(updates: list[Update]) -> bool:
        for update in updates:
            gathered[update.index].take(update, style)
        return True

    try:
        await run.deliver(take)
    finally:
        await run.aclose()

    def logprobs(rows: list[bytes]) -> dict[str, Any] | None:
        return None if style.rows is None else {"content": orjson.Fragment(b"[%b]" % b",".join(rows)), "refusal": None}

    choices = [
        {
            "index": i,
            "message": g.message(style.reasoning_fields),
            "logprobs": logprobs(g.rows),
            "finish_reason": g.finish,
        }
        for i, g in enumerate(gathered)
    ]
    return {**style.head, "model": run.opened.told, "choices": choices, "usage": usage_of(run)}

"""The transcripts under tests/fixtures/parsing as objects, and what all tests of the parsers share."""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway.parsing import (
    ContentDelta,
    Event,
    OutputParser,
    ReasoningDelta,
    StopMatched,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStart,
    ToolSpec,
)
from gateway.prompt import Checkpoint

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = ROOT / "tests" / "fixtures" / "parsing"
NAMESPACE = "]<]minimax[>["
MARKERS = (NAMESPACE, "<mm:think>", "</mm:think>")


@functools.cache
def tiny() -> Checkpoint:
    return Checkpoint.load(ROOT / "engine" / "checkpoints" / "tiny")


@functools.cache
def tool_specs() -> dict[str, ToolSpec]:
    data = yaml.safe_load((FIXTURES / "tools.yaml").read_text())
    return {name: ToolSpec(name, schema) for name, schema in data.items()}


@dataclass
class Transcript:
    name: str
    text: str
    mode: str = "content"
    tools: list[str] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    min_tokens: int = 0
    parse_tools: bool = True
    separate_reasoning: bool = True
    reasoning: str = ""
    content: str = ""
    calls: list[Any] = field(default_factory=list)
    stopped: str | None = None
    slips: int = 0

    def parser(self) -> OutputParser:
        numbers = itertools.count()
        return OutputParser(
            tiny(),
            starts_in_reasoning={"reasoning": True, "content": False, "adaptive": None}[self.mode],
            tools=[tool_specs()[t] for t in self.tools],
            parse_tools=self.parse_tools,
            stop=self.stop,
            min_tokens=self.min_tokens,
            separate_reasoning=self.separate_reasoning,
            call_id_factory=lambda: f"call_{next(numbers)}",
        )


@functools.cache
def transcripts() -> tuple[Transcript, ...]:
    data = yaml.safe_load((FIXTURES / "transcripts.yaml").read_text())
    return tuple(Transcript(**{**d, "text": d["text"].replace("¤", NAMESPACE)}) for d in data)


def merged(events: list[Event]) -> list[Event]:
    """Neighbours of one kind as one event; logprob rows first, as one."""
    rows = tuple(r for e in events if isinstance(e, TokenLogprobs) for r in e.rows)
    out: list[Event] = [TokenLogprobs(rows)] if rows else []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, TokenLogprobs):
            continue
        if isinstance(event, (ContentDelta, ReasoningDelta)):
            assert event.text, "an empty delta"
            if type(last) is type(event):
                out[-1] = type(event)(last.text + event.text)  # type: ignore[union-attr]
                continue
        if isinstance(event, ToolCallArguments) and isinstance(last, ToolCallArguments) and last.index == event.index:
            out[-1] = ToolCallArguments(event.index, last.text + event.text)
            continue
        out.append(event)
    return out


@dataclass
class Answer:
    """What a client has in the end."""

    reasoning: str = ""
    content: str = ""
    calls: list[Any] = field(default_factory=list)
    stopped: str | None = None


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def answer(events: list[Event]) -> Answer:
    out = Answer()
    arguments: dict[int, str] = {}
    for event in events:
        match event:
            case ContentDelta(text):
                out.content += text
            case ReasoningDelta(text):
                out.reasoning += text
            case ToolCallStart(index, _, name):
                assert index == len(out.calls)
                out.calls.append([name, None])
            case ToolCallArguments(index, text):
                text.encode()
                arguments[index] = arguments.get(index, "") + text
            case StopMatched(stop):
                assert out.stopped is None
                out.stopped = stop
    for index, text in arguments.items():
        out.calls[index][1] = json.loads(text, parse_constant=_refuse)
    return out

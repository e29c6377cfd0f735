"""What the output parsers emit. Pure data; `gateway.api` turns it into SSE deltas or one message.

The two that come with nearly every token are Structs, which cost a fraction of a dataclass to make."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from engine.wire import LogprobRow


class ContentDelta(Struct, frozen=True, gc=False):
    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A new call. `index` 0, 1, 2, ... in order of appearance; `id` unique ("call_...")."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the JSON text of a call's arguments; the pieces of one index concatenate to valid JSON."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One row per generated token, in order, whichever delta its text went to. Emitted with the feed that brought the
    tokens, before the text events of that feed."""

    rows: tuple[LogprobRow, ...]


@dataclass(frozen=True, slots=True)
class StopMatched:
    """A stop string was found; text from it on is dropped and the caller aborts the engine request."""

    stop: str


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | TokenLogprobs | StopMatched

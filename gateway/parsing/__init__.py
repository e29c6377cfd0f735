"""Token ids of an answer -> events, whatever way the stream was cut. Pure, synchronous, incremental."""

from gateway.parsing.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    StopMatched,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStart,
)
from gateway.parsing.parser import OutputParser
from gateway.parsing.tools import ToolSpec

__all__ = [
    "ContentDelta",
    "Event",
    "OutputParser",
    "ReasoningDelta",
    "StopMatched",
    "TokenLogprobs",
    "ToolCallArguments",
    "ToolCallStart",
    "ToolSpec",
]

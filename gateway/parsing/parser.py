"""Token ids of one choice -> events: detokenizer -> thinking / tool calls / content -> stop strings.

Three modes, each with the markers it looks for (`N` is the namespace marker):

| mode      | marker         | what happens                                              |
|-----------|----------------|-----------------------------------------------------------|
| content   | `<mm:think>`   | -> reasoning                                              |
| content   | `</mm:think>`  | dropped                                                   |
| content   | N              | -> tools; what proves to be no tool call returns as content |
| reasoning | `</mm:think>`  | -> content                                                |
| reasoning | `<mm:think>`, N | dropped                                                  |
| tools     | N              | a tag follows (tools.py)                                  |

The common token takes a short way: while nothing is held back, one whose text is whole characters and has no character that
a marker or a stop string begins with is an event of its own, as the long way would find. So it is in content, in thinking
and in a string argument.

Markers are found in the text, so it does not matter whether the model wrote one token or several. Held back: an end of
the text that may be the beginning of a marker. A stop string is looked for in content alone. White space alone, at the
beginning of content or after tool calls, waits for text; if a tool call or the end comes instead it is dropped.

The non-stream answer is made by the same class: feed everything, finish."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final, Literal
from weakref import WeakKeyDictionary

from engine.wire import LogprobRow
from gateway.parsing.detokenizer import Detokenizer, TokenTexts
from gateway.parsing.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    StopMatched,
    TokenLogprobs,
    ToolCallStart,
)
from gateway.parsing.marker_text import Cleaner, Markers
from gateway.parsing.stop import StopStrings
from gateway.parsing.tools import ToolCallParser, ToolSpec
from gateway.prompt import markers
from gateway.prompt.checkpoint import Checkpoint

Mode = Literal["content", "reasoning", "tools"]


_ALL: Final = Markers(markers.THINK_START, markers.THINK_END, markers.NAMESPACE)
_TAGS: Final = Markers(markers.NAMESPACE)
_LOOK_FOR: Final[dict[Mode, Markers]] = {"content": _ALL, "reasoning": _ALL, "tools": _TAGS}


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class OutputParser:
    """One per choice. `starts_in_reasoning` None means that the model decides (adaptive thinking).

    parse_tools         False: what looks like a tool call is content, without N
    structured          True: the answer is held to a grammar. Once content has begun, a start of thinking is a string's
                        text gone astray: it is dropped, and the content goes on
    min_tokens          of the tokens up to this one none completes a stop string
    separate_reasoning  False: thinking and its markers are content, as the model wrote them, opened if the prompt did
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        starts_in_reasoning: bool | None,
        tools: Sequence[ToolSpec] = (),
        parse_tools: bool = True,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        separate_reasoning: bool = True,
        structured: bool = False,
        call_id_factory: Callable[[], str] = new_call_id,
    ) -> None:
        self._detokenizer = Detokenizer(token_texts(checkpoint))
        self._mode: Mode = "reasoning" if starts_in_reasoning else "content"
        self._events: list[Event] = []
        self._tools = ToolCallParser(tools, self._from_tools, call_id_factory)
        self._parse_tools = parse_tools
        self._separate = separate_reasoning
        self._structured = structured
        self._stop = StopStrings(stop)
        self._min_tokens = min_tokens
        self._plain = plain_texts(checkpoint)
        self._quick: Callable[[str], Event] | None = None
        """Makes the event of a plain token now; None while something is held back, and where only the long way knows."""
        self._held = ""
        self._blank: list[str] | None = []
        """White space at an edge of content, waiting; None inside content."""
        # What is taken out may bring the halves of a marker together, so what leaves is looked through once more.
        self._clean_content = Cleaner(_ALL if separate_reasoning else _TAGS)
        self._clean_reasoning = Cleaner(_ALL)
        self._finished = False
        self.saw_tool_call = False
        self.stopped: str | None = None
        """The stop string that matched."""
        self.reasoning_tokens = 0
        """Tokens fed while thinking, the closing marker's included."""
        self.tokens = 0
        """Tokens taken; those after a stop string are not."""
        if starts_in_reasoning and not separate_reasoning:
            self._unseparated(markers.THINK_START)

    @property
    def parse_errors(self) -> int:
        """Slips of the model in its tool calls."""
        return self._tools.errors

    # ------------------------------------------------------------------------------------------ input
    def feed(self, ids: Sequence[int], logprobs: Sequence[LogprobRow] | None = None) -> list[Event]:
        if self._quick is not None and logprobs is None and len(ids) == 1:
            token = ids[0]
            text = self._plain[token] if token < len(self._plain) else None
            if text is not None and self._stop.firsts.isdisjoint(text):
                self.tokens += 1
                if self._quick is ReasoningDelta:
                    self.reasoning_tokens += 1
                return [self._quick(text)]
        taken = 0
        for token in ids:
            if self.stopped is not None:
                break
            taken += 1
            if self._min_tokens:
                self._stop.resting = self.tokens + taken <= self._min_tokens
            thinking = self._mode == "reasoning"
            text = self._detokenizer.feed(token)
            if text:
                self._text(text)
            if thinking or self._mode == "reasoning":
                self.reasoning_tokens += 1
        self.tokens += taken
        events = self._take()
        if logprobs and taken:
            events.insert(0, TokenLogprobs(tuple(logprobs[:taken])))
        return events

    def feed_text(self, text: str) -> list[Event]:
        """Text in place of ids, cut anywhere."""
        if text and self.stopped is None:
            self._text(text)
        return self._take()

    def finish(self, *, truncated: bool = False) -> list[Event]:
        """The end: everything held back comes out. `truncated`: the engine stopped for length, so a call that is still
        open keeps its JSON as far as it got; otherwise its JSON is closed."""
        if self._finished:
            return []
        self._finished = True
        if self.stopped is None:
            self._text(self._detokenizer.finish(), last=True)
            if self._mode == "tools":
                rest = self._tools.finish(truncated=truncated)
                self._mode = "content"
                if rest:
                    self._text(rest, last=True)
            if self._blank and not self._tools.calls:
                self._pass(self._clean_content.feed("".join(self._blank)))
            if self._mode == "reasoning":
                self._reasoning(self._clean_reasoning.flush())
            self._pass(self._clean_content.flush())
            self._reasoning(self._clean_reasoning.flush())
            self._flush_content()
        return self._take()

    # ------------------------------------------------------------------------------------------ modes
    def _text(self, text: str, *, last: bool = False) -> None:
        if self._held:
            text = self._held + text
            self._held = ""
        at = 0
        while True:
            look = _LOOK_FOR[self._mode]
            match = look.find(text, at)
            end = match.start() if match else len(text) if last else look.held_from(text, at)
            rest = self._route(text[at:end]) if end > at else None
            if self.stopped is not None:
                return
            if rest is not None:  # tools are over, in the middle of this piece
                self._mode = "content"
                at = end - len(rest)
                if at < 0 or not text.startswith(rest, at):
                    text, at = rest + text[end:], 0
                if rest or match:
                    continue
            if match is None:
                self._held = text[end:]
                return
            at = match.end()
            self._marker(match[0])
            if self.stopped is not None:
                return

    def _route(self, piece: str) -> str | None:
        if self._mode == "tools":
            return self._tools.text(piece)
        if self._mode == "content":
            self._content(piece)
        elif self._separate:
            self._reasoning(self._clean_reasoning.feed(piece))
        else:
            self._unseparated(piece)
        return None

    def _marker(self, marker: str) -> None:
        if marker == markers.NAMESPACE:
            if self._mode != "reasoning" and self._parse_tools:
                self._mode = "tools"
                self._content(self._tools.marker())
            return
        if self._structured and self._mode == "content" and self._blank is None:
            return
        self._mode = "reasoning" if marker == markers.THINK_START else "content"
        if not self._separate:
            self._unseparated(marker)

    # ------------------------------------------------------------------------------------------ output
    def _content(self, text: str) -> None:
        if self._blank is not None:
            self._blank.append(text)
            if not text or text.isspace():
                return
            text = "".join(self._blank)
            self._blank = None
        self._pass(self._clean_content.feed(text))

    def _reasoning(self, text: str) -> None:
        if not text:
            return
        self._say(self._clean_content.let_go())  # was before it
        if self.stopped is None:
            self._events.append(ReasoningDelta(text))

    def _thought_before(self) -> None:
        if self._clean_reasoning.waits:
            self._events.append(ReasoningDelta(self._clean_reasoning.let_go()))

    def _pass(self, text: str) -> None:
        if text:
            self._thought_before()
            self._say(text)

    def _say(self, text: str) -> None:
        if not text or self.stopped is not None:
            return
        safe = self._stop.feed(text)
        if safe:
            self._events.append(ContentDelta(safe))
        if self._stop.matched is not None:
            self.stopped = self._stop.matched
            self._events.append(StopMatched(self._stop.matched))

    def _unseparated(self, text: str) -> None:
        """Thinking as content: stop strings do not apply to it."""
        self._pass(self._clean_content.flush())
        if self.stopped is not None:
            return
        self._flush_content()
        self._blank = None
        self._events.append(ContentDelta(text))

    def _flush_content(self) -> None:
        held = self._stop.flush()
        if held:
            self._events.append(ContentDelta(held))

    def _from_tools(self, event: Event) -> None:
        if isinstance(event, ToolCallStart):
            self._pass(self._clean_content.let_go())
            self._thought_before()
            self._flush_content()
            self._blank = []
        if self.stopped is None:
            self.saw_tool_call = True
            self._events.append(event)

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        self._quick = self._settled()
        return events

    def _settled(self) -> Callable[[str], Event] | None:
        if self._held or self._detokenizer.pending or self.stopped is not None or self._finished:
            return None
        if self._mode == "content":
            free = self._blank is None and not self._clean_content.held and not self._stop.held
            return ContentDelta if free and not self._clean_reasoning.waits else None
        if self._mode == "tools":
            return self._tools.plain()
        free = self._separate and not self._clean_reasoning.held and not self._clean_content.waits
        return ReasoningDelta if free else None


def plain_texts(checkpoint: Checkpoint) -> list[str | None]:
    """By id: the text of a token that is whole characters, none of which a marker begins with; None for the others. Made
    once."""
    table = _PLAIN.get(checkpoint)
    if table is None:
        texts = token_texts(checkpoint).text
        table = _PLAIN[checkpoint] = [text if text and not _ALL.firsts(text) else None for text in texts]
    return table


_PLAIN: Final[WeakKeyDictionary[Checkpoint, list[str | None]]] = WeakKeyDictionary()
_TEXTS: Final[WeakKeyDictionary[Checkpoint, TokenTexts]] = WeakKeyDictionary()


def token_texts(checkpoint: Checkpoint) -> TokenTexts:
    """The checkpoint's table, made once."""
    table = _TEXTS.get(checkpoint)
    if table is None:
        table = _TEXTS[checkpoint] = TokenTexts(checkpoint)
    return table

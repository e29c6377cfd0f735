"""Tool calls of M3-class models: a stack of open values, moved by tags. `N` is the namespace marker.

block  = N "<tool_call>" NL { invoke NL } N "</tool_call>"
invoke = N '<invoke name="' NAME '">' { param } N "</invoke>"
param  = N "<" KEY ">" value N "</" KEY ">"
value  = TEXT | { param } | { N "<item>" value N "</item>" }

Only what follows N directly is a tag, so TEXT may hold `<`, `</x>` and anything else.
Held back: the text after an N until the tag is decided; the values named in values.py.
Tolerated (each counted in `errors`, none stops the next call): a first parameter without its opening tag, `invoke`
without `<`, missing closing tags, a closing tag that matches nothing, a block without `<tool_call>`, words between
members. What cannot be placed is dropped when it is inside a call, and is content when it is outside of one. A call
without a name is dropped whole.

Not here: finding N in the stream, and what is content (parser.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.parsing.events import Event, ToolCallArguments, ToolCallStart
from gateway.parsing.schema import ANY, Schema
from gateway.parsing.values import Value, to_json

_INVOKE: Final = re.compile(r"""\s*<?invoke\s+name\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]*))\s*>""")
_INVOKE_BEGUN: Final = re.compile(r"""\s*<?invoke\s+\S?""")
_TAG: Final = re.compile(r"\s*<(/?)([^\s<>/][^\s>]*)>")
_UNFINISHED: Final = re.compile(r"\s*(<(/?([^\s<>/][^\s>]*)?)?)?")
_RESERVED: Final = ("tool_call", "invoke")
_MAX_TAG_CHARS: Final = 512
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function the model may call. `parameters` is its JSON schema, None when the client gave none."""

    name: str
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Tag:
    kind: str  # "invoke", "open", "close"
    name: str
    source: str


class ToolCallParser:
    def __init__(self, tools: Sequence[ToolSpec], emit: Callable[[Event], None], new_id: Callable[[], str]) -> None:
        self._schemas = {t.name: Schema(t.parameters) if t.parameters else ANY for t in tools}
        self._emit = emit
        self._new_id = new_id
        self._tag: str | None = None
        """Text after an N whose tag is not decided yet."""
        self._in_block = False
        self._stack: list[Value] = []
        """The open values of the call, the arguments object first."""
        self._skipping = False
        """Inside a call that is being dropped."""
        self._orphan: list[str] | None = None
        """Text after an N, where a tag was due: perhaps the value of a parameter without its opening tag."""
        self._words_seen = False
        """Words between members were counted since the last N."""
        self.calls = 0
        self.errors = 0

    def plain(self) -> Callable[[str], Event] | None:
        """What makes the event of the next piece of text, while that can only be more of a string argument that is being
        written; None elsewhere."""
        if self._tag is not None or self._skipping or self._orphan is not None or not self._stack:
            return None
        top = self._stack[-1]
        if top.form != "string" or top.write is None or not top.written:
            return None
        index = self.calls - 1
        return lambda text: ToolCallArguments(index, to_json(text)[1:-1])

    # ------------------------------------------------------------------------------------------ input
    def marker(self) -> str:
        """An N. Returns text that turned out to be content."""
        content = "" if self._tag is None else self._no_tag(self._tag)
        self._tag = ""
        self._words_seen = False
        return content

    def text(self, text: str) -> str | None:
        """Text after an N, up to the next one. None: taken. Else the rest of it, which is content: the parser is
        between blocks."""
        if self._tag is not None:
            self._tag += text
            decided = _decide(self._tag)
            if decided is None:
                return None
            tag, rest = decided
            source, self._tag = self._tag, None
            if tag is None or (tag.kind != "invoke" and tag.name not in _RESERVED and not self._inside()):
                text = self._no_tag(source)
                return text if not self._inside() else None
            self._handle(tag)
            text = rest
        if not text:
            return None if self._inside() else ""
        return self._words(text)

    def finish(self, *, truncated: bool) -> str:
        """The end of the stream. Returns text that turned out to be content. A truncated call keeps the JSON it has."""
        tag, self._tag = self._tag, None
        content = ""
        if tag and not self._inside():
            content = self._no_tag(tag)
        elif tag and not truncated:
            self.errors += 1
        if self._stack:
            self.errors += 1
            if truncated:
                self._stack.clear()
            else:
                self._close_call()
        self._in_block = self._skipping = False
        return content

    def _inside(self) -> bool:
        return self._in_block or bool(self._stack) or self._skipping

    # ------------------------------------------------------------------------------------------ text
    def _words(self, text: str) -> str | None:
        if self._skipping:
            return None
        if self._stack:
            if self._orphan is not None:
                self._orphan.append(text)
            elif not self._stack[-1].text(text) and not self._words_seen:
                self._words_seen = True
                self.errors += 1
            return None
        if self._in_block:
            text = text.lstrip()
            if not text:
                return None
            self._in_block = False  # the block was not closed: the answer goes on
            self.errors += 1
        return text

    def _no_tag(self, text: str) -> str:
        """`text` came right after an N and is no tag."""
        self.errors += bool(text)
        if not text or self._skipping:
            return ""
        if not self._stack:
            self._in_block = False
            return text
        top = self._stack[-1]
        if top.form in ("object", "array"):
            self._orphan = [text]
        else:
            top.text(text)
        return ""

    # ------------------------------------------------------------------------------------------ tags
    def _handle(self, tag: _Tag) -> None:
        orphan, self._orphan = self._orphan, None
        if tag.kind == "invoke":
            self._open_call(tag.name)
        elif tag.name == "tool_call" and not self._is_key(tag):
            if self._stack:
                self.errors += 1
                self._close_call()
            self._skipping = False
            self._in_block = tag.kind == "open"
        elif tag.kind == "close" and tag.name == "invoke" and not self._is_key(tag):
            if self._stack:
                self._close_call()
            elif not self._skipping:
                self.errors += 1
            self._skipping = False
            self._in_block = True
        elif not self._stack:
            self.errors += 1
            self._skipping = self._skipping or self._in_block
        elif tag.kind == "open":
            self._open_value(tag)
        else:
            self._close_value(tag, orphan)

    def _is_key(self, tag: _Tag) -> bool:
        """Whether a tag with a reserved name is a parameter of that name."""
        if not self._stack:
            return False
        if tag.kind == "close":
            return any(v.key == tag.name for v in self._stack[1:])
        return self._stack[-1].form in ("object", "open") and self._stack[-1].schema.names(tag.name)

    def _open_call(self, name: str) -> None:
        if self._stack:
            self.errors += 1
            self._close_call()
        self._in_block = True
        self._skipping = not name
        if not name:
            self.errors += 1
            return
        index = self.calls
        self.calls += 1
        self._emit(ToolCallStart(index, self._new_id(), name))
        root = Value("", self._schemas.get(name, ANY), lambda piece: self._emit(ToolCallArguments(index, piece)))
        root.begin()
        self._stack = [root]

    def _close_call(self) -> None:
        self.errors += len(self._stack) - 1
        while len(self._stack) > 1:
            self._close_top()
        self._stack.pop().finish()

    def _close_top(self) -> None:
        child = self._stack.pop()
        if not self._stack[-1].adopt(child):
            self.errors += 1

    def _open_value(self, tag: _Tag) -> None:
        top = self._stack[-1]
        if not top.takes(tag.name):
            # Text so far, and now a tag: the closing tag was forgotten, or the text itself has an N.
            if len(self._stack) > 1 and self._stack[-2].schema.names(tag.name) and self._stack[-2].form == "object":
                self.errors += 1
                self._close_top()
                top = self._stack[-1]
            else:
                self.errors += 1
                top.text(tag.source)
                return
        if len(self._stack) > _MAX_DEPTH:
            self.errors += 1
            self._close_call()
            self._skipping = True
            return
        self._stack.append(top.child(tag.name))

    def _close_value(self, tag: _Tag, orphan: list[str] | None) -> None:
        top = self._stack[-1]
        if any(v.key == tag.name for v in self._stack[1:]):
            while self._stack[-1].key != tag.name:
                self.errors += 1
                self._close_top()
            self._close_top()
        elif orphan is not None:
            self._adopt_text(tag.name, "".join(orphan))
        elif top.form in ("object", "array") or len(self._stack) == 1:
            self.errors += 1
        else:
            self.errors += 1
            parent = self._stack[-2]
            if top.write is None and not parent.schema.names(top.key) and parent.schema.names(tag.name):
                # `N <b>text N </html>`: the tag was the beginning of the value, whose own tag is missing
                self._stack.pop()
                self._adopt_text(tag.name, f"<{top.key}>{top.raw_text()}")
            else:
                self._close_top()

    def _adopt_text(self, key: str, text: str) -> None:
        child = self._stack[-1].child(key)
        child.write = None
        child.text(text)
        if not self._stack[-1].adopt(child):
            self.errors += 1


def _decide(text: str) -> tuple[_Tag | None, str] | None:
    """(tag, rest); (None, text) when no tag begins here; None when more text is needed."""
    invoke = _INVOKE.match(text)
    if invoke:
        name = next((g for g in invoke.groups() if g is not None), "")
        return _Tag("invoke", name.strip(), invoke[0]), text[invoke.end() :]
    begun = _INVOKE_BEGUN.match(text)
    if not begun or begun.end() < len(text):
        tag = _TAG.match(text)
        if tag:
            return _Tag("close" if tag[1] else "open", tag[2], tag[0].strip()), text[tag.end() :]
    more = len(text) <= _MAX_TAG_CHARS and (
        begun is not None or "invoke".startswith(text.strip()) or _UNFINISHED.fullmatch(text) is not None
    )
    return None if more else (None, text)

"""Markers in text that arrives in pieces: finding them, holding back one that may have begun, taking them out.

The cost per piece is bounded by the piece and the longest marker."""

from __future__ import annotations

import re


class Markers:
    """A set of markers to look for, and how much of a text's end may be one that has begun."""

    def __init__(self, *words: str) -> None:
        self.find = re.compile("|".join(map(re.escape, words))).search
        self.firsts = re.compile("[" + re.escape("".join({w[0] for w in words})) + "]").search
        self._words = words
        self._longest = max(map(len, words))

    def held_from(self, text: str, start: int) -> int:
        at = max(start, len(text) - self._longest + 1)
        while match := self.firsts(text, at):
            at = match.start()
            if any(w.startswith(text[at:]) for w in self._words):
                return at
            at += 1
        return len(text)


class Cleaner:
    """Takes markers out of text that arrives in pieces."""

    def __init__(self, words: Markers) -> None:
        self._words = words
        self.held = ""
        self._out = 0
        """How much of `held` is out already, by `let_go`: of a marker that it begins only the rest can be taken out."""

    def feed(self, text: str) -> str:
        if not self.held and not self._words.firsts(text):
            return text
        text = self.held + text
        out: list[str] = []
        while match := self._words.find(text):
            # What stood before the marker may now continue behind it.
            keep = self._words.held_from(text[: match.start()], 0)
            out.append(self._pass(text[:keep]))
            self._out = min(self._out, match.start() - keep)
            text = text[keep : match.start()] + text[match.end() :]
        keep = self._words.held_from(text, 0)
        self.held = text[keep:]
        out.append(self._pass(text[:keep]))
        return "".join(out)

    @property
    def waits(self) -> bool:
        return len(self.held) > self._out

    def let_go(self) -> str:
        """What is held back, since text of another kind comes next; it is remembered as the beginning that it may be."""
        held = self.held[self._out :]
        self._out = len(self.held)
        return held

    def flush(self) -> str:
        held = self.let_go()
        self.held, self._out = "", 0
        return held

    def _pass(self, text: str) -> str:
        new = text[self._out :]
        self._out = max(0, self._out - len(text))
        return new

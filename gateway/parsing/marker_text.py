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

    def feed(self, text: str) -> str:
        if not self.held and not self._words.firsts(text):
            return text
        text = self.held + text
        out: list[str] = []
        while match := self._words.find(text):
            # What stood before the marker may now continue behind it.
            keep = self._words.held_from(text[: match.start()], 0)
            out.append(text[:keep])
            text = text[keep : match.start()] + text[match.end() :]
        keep = self._words.held_from(text, 0)
        self.held = text[keep:]
        out.append(text[:keep])
        return "".join(out)

    def flush(self) -> str:
        held, self.held = self.held, ""
        return held

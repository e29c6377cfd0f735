"""Stop strings in content. Of several, the one that is complete first counts, and of those the longest: what a reader
of single characters would see, so no cut of the stream changes it.

Held back: the longest end of the text that could begin a stop string. The cost per character is bounded by the
longest stop string, not by the text."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(s for s in stops if s))
        self._longest = max(map(len, self._stops), default=0)
        self.firsts = frozenset(s[0] for s in self._stops)
        """The characters that a stop string may begin with."""
        self.held = ""
        self.matched: str | None = None
        self.resting = False
        """What is complete now does not count; what only begins now may."""

    def feed(self, text: str) -> str:
        """The text that is safe to pass on. After a match, nothing."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        seen = len(self.held)
        text = self.held + text
        found = [(at + len(s), at, s) for s in self._stops if (at := text.find(s, max(0, seen - len(s) + 1))) >= 0]
        if found and not self.resting:
            _, at, self.matched = min(found)
            self.held = ""
            return text[:at]
        keep = self._beginning(text)
        self.held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held back: something else than content comes next, or nothing more."""
        held, self.held = self.held, ""
        return held

    def _beginning(self, text: str) -> int:
        """Where the longest possible beginning of a stop string starts, at the end of `text`."""
        for i in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[i] in self.firsts and any(s.startswith(text[i:]) for s in self._stops):
                return i
        return len(text)

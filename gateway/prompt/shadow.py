"""Keeps client text from ever becoming a control token, whatever the chat template does with it.

Every character that occurs in some added token has a twin among the lone surrogates (U+D800..U+DFFE). Client strings
are rendered with twins in place of those characters; a control token is then recognised only where every one of its
characters came from the template; last, twins become the characters again. This is a nonce per character:

* it cannot be forged: a lone surrogate is not text, no UTF-8 body can hold one, and `hide` refuses strings that do;
* lengths and positions do not change, whitespace has no twin, so `strip`, slices, `split('\\n')`, `is string` and
  `tojson` (quotes and backslashes have no twins) do in a template what they would have done;
* it is local: a token spread over two parts, over a key and the template's own `<`, over anything, is caught alike.

A string that cannot contribute to any token is left alone, so that a template may compare it with its own constants.
A template that searches a *risky* string for its own marker does not find it; the one search that M3-class templates
make (cutting reasoning out of past content) is done by gateway/prompt/messages.py before rendering.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable
from typing import Final

from gateway.prompt.json_text import SURROGATE

FIRST_TWIN: Final = 0xD800
CUT: Final = "\udfff"
"""Marks where a continued final message ends; it survives rendering and is never a twin."""
_MAX_TWINS: Final = 0xDFFF - FIRST_TWIN
_SHORT: Final = 256
"""Up to here one pattern is quicker than a search for each word."""
_CHUNK: Final = 1 << 14
"""Characters handled in one call: other threads get their turn in between."""


class NotText(ValueError):
    """The string holds a lone surrogate, which is not a character and cannot be encoded."""


class Shadow:
    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = sorted({t for t in tokens if t})
        letters = sorted({c for t in self._tokens for c in t if not c.isspace() and c.isprintable() and c not in '"\\'})
        if len(letters) > _MAX_TWINS:
            raise ValueError(
                f"added tokens use {len(letters)} different characters; at most {_MAX_TWINS} can be hidden"
            )
        self._to = {ord(c): FIRST_TWIN + i for i, c in enumerate(letters)}
        self._back = {twin: c for c, twin in self._to.items()}
        edges = {c for t in self._tokens for c in (t[0], t[-1])}
        self._edge = re.compile("[" + "".join(re.escape(c) for c in sorted(edges)) + "]") if edges else None
        cores = {t.strip("".join(edges)) for t in self._tokens} - {""}
        self._cores = sorted(c for c in cores if not any(d in c for d in cores if d != c))
        self._core = re.compile("|".join(map(re.escape, self._cores))).search if self._cores else None
        self._joined = "\ud7ff".join(self._tokens)
        # ASCII text takes the short way through C: byte -> character by table, and back.
        twins = [(i, self._to[i]) for i in range(128) if i in self._to]
        self._ascii_hide = "".join(chr(self._to.get(i, i)) for i in range(128)) + "\ufffe" * 128
        self._wide = re.compile("[^\x00-\x7f" + "".join(chr(twin) for _, twin in twins) + "]").search
        one_byte = "".join(map(chr, range(128))) + "".join(chr(twin) for _, twin in twins)
        self._ascii_bytes = codecs.charmap_build(one_byte.ljust(256, "\ufffe"))
        self._ascii_reveal = bytes(range(128)) + bytes(i for i, _ in twins).ljust(128, b"?")

    def risky(self, text: str) -> bool:
        """Whether `text`, or what is left after its ends are stripped, could be a part of an added token in some
        surroundings. A token that begins or ends inside `text` shows one of its end characters; a token that covers
        `text` whole contains it."""
        if self._edge is None or not text:
            return False
        if holds(self._edge, text):
            return True
        if text.strip() in self._joined:
            return True
        if self._core is None:
            return False
        if len(text) <= _SHORT:
            return self._core(text) is not None
        return any(core in text for core in self._cores)

    def hide(self, text: str) -> str:
        """Raises NotText."""
        if not text.isascii() and holds(SURROGATE, text):
            raise NotText("text holds a lone surrogate, which is not a character")
        return _by_chunks(text, self._hide) if self.risky(text) else text

    def reveal(self, text: str) -> str:
        if text.isascii() or not holds(SURROGATE, text):
            return text
        return _by_chunks(text, self._reveal)

    def _hide(self, text: str) -> str:
        if text.isascii():
            return codecs.charmap_decode(text.encode("ascii"), "strict", self._ascii_hide)[0]
        return text.translate(self._to)

    def _reveal(self, text: str) -> str:
        if self._wide(text):
            return text.translate(self._back)
        raw = codecs.charmap_encode(text, "strict", self._ascii_bytes)[0]
        return raw.translate(self._ascii_reveal).decode("ascii")


def holds(letters: re.Pattern[str], text: str) -> bool:
    """Whether a character that `letters` takes is in `text`. In steps: a search holds the interpreter lock to its end."""
    if len(text) <= _CHUNK:
        return letters.search(text) is not None
    return any(letters.search(text, i, i + _CHUNK) for i in range(0, len(text), _CHUNK))


def _by_chunks(text: str, change: Callable[[str], str]) -> str:
    if len(text) <= _CHUNK:
        return change(text)
    return "".join(change(text[i : i + _CHUNK]) for i in range(0, len(text), _CHUNK))

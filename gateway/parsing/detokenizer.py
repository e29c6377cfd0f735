"""Token ids -> text, piece by piece, never half a character.

Held back: the bytes of a character that has not ended. U+FFFD comes out only for bytes that cannot become a character
any more, exactly where decoding all bytes at once would put it. Each id costs the same wherever it stands."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from gateway.prompt.checkpoint import Checkpoint


class TokenTexts:
    """The bytes of every id, and its text where the bytes are whole characters. One per checkpoint, shared.

    Control tokens (special ones and the ends of turn) are silent; the markers of thinking and tool calls are text."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.data: list[bytes] = list(checkpoint.vocabulary.token_bytes)
        spoken = {checkpoint.think_start_id, checkpoint.think_end_id, checkpoint.namespace_id}
        silent = {t.id for t in checkpoint.vocabulary.added if t.special} | set(checkpoint.eos_ids)
        for token in silent - spoken:
            if 0 <= token < len(self.data):
                self.data[token] = b""
        self.text: list[str | None] = [_whole(data) for data in self.data]


def _whole(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


class Detokenizer:
    def __init__(self, texts: TokenTexts) -> None:
        self._data = texts.data
        self._text = texts.text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.pending = False
        """A character has begun and not ended."""

    def feed(self, token: int) -> str:
        """The text that `token` completes; "" when it completes none, or is unknown."""
        if not 0 <= token < len(self._data):
            return ""
        if not self.pending:
            text = self._text[token]
            if text is not None:
                return text
        elif not self._data[token]:
            return ""
        text = self._decoder.decode(self._data[token])
        self.pending = bool(self._decoder.getstate()[0])
        return text

    def feed_many(self, tokens: Iterable[int]) -> str:
        return "".join(map(self.feed, tokens))

    def finish(self) -> str:
        self.pending = False
        return self._decoder.decode(b"", final=True)

"""Engine logprob rows -> OpenAI's. A token's text is made from its bytes, so half a character shows as U+FFFD while
`bytes` has the truth."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from engine.wire import LogprobRow

if TYPE_CHECKING:
    from gateway.prompt import Checkpoint

FLOOR: Final = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON cannot hold."""


def _byte_of_character() -> dict[str, int]:
    """The byte-level BPE alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in plain}
    others = [b for b in range(256) if b not in set(plain)]
    return table | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTES: Final = _byte_of_character()


class TokenTexts:
    """id -> (text, bytes), remembered."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._added = {i: text for text, i in checkpoint.added_tokens.items()}
        self._seen: dict[int, tuple[str, list[int]]] = {}

    def of(self, token: int) -> tuple[str, list[int]]:
        known = self._seen.get(token)
        if known is None:
            raw = self._bytes(token)
            known = self._seen[token] = raw.decode("utf-8", "replace"), list(raw)
        return known

    def text_of(self, ids: Iterable[int]) -> str:
        return b"".join(bytes(self.of(i)[1]) for i in ids).decode("utf-8", "replace")

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        spelled = self._checkpoint.tokenizer.id_to_token(token)
        if spelled is None:
            return b""
        try:
            return bytes(_BYTES[c] for c in spelled)
        except KeyError:
            return spelled.encode()

    def chat_rows(self, rows: Iterable[LogprobRow], top: int) -> list[dict[str, Any]]:
        return [
            {**self._entry(token, logprob), "top_logprobs": [self._entry(t, p) for p, t in alternatives[:top]]}
            for logprob, token, alternatives in rows
        ]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text, raw = self.of(token)
        return {"token": text, "logprob": finite(logprob), "bytes": raw}


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else FLOOR

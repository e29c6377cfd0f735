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


class TokenTexts:
    """id -> (text, bytes), remembered."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._seen: dict[int, tuple[str, list[int]]] = {}

    def of(self, token: int) -> tuple[str, list[int]]:
        known = self._seen.get(token)
        if known is None:
            raw = self._bytes(token)
            known = self._seen[token] = raw.decode("utf-8", "replace"), list(raw)
        return known

    def _bytes(self, token: int) -> bytes:
        table = self._checkpoint.vocabulary.token_bytes
        return table[token] if 0 <= token < len(table) else b""

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

"""A prompt as a chain of block names: equal names mean equal tokens, media and salt from the start up to that block.

Name i = the first 8 bytes of blake3(salt, blocks 0..i), so one pass gives all of them. Placeholder ids of media are
replaced by words drawn from the item's own hash, as engines key their prefix caches: two pictures of one size differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from engine.wire import Item


def with_sentinels(ids: NDArray[np.uint32], items: Sequence[Item]) -> NDArray[np.uint32]:
    """`ids` with every placeholder replaced; the same array when there are no items."""
    if not items:
        return ids
    out = ids.copy()
    for item in items:
        word = np.uint32(int(item.hash[:8], 16) | 0x8000_0000)
        for offset, length in item.ranges:
            out[offset : offset + length] = word
    return out


def block_names(ids: NDArray[np.uint32], items: Sequence[Item], salt: str | None, block_tokens: int) -> list[bytes]:
    """One name per whole block, 8 bytes each; the last, partial block has none."""
    words = np.ascontiguousarray(with_sentinels(ids, items), dtype="<u4")
    hasher = blake3(b"catalejo-route-1\x00" + (salt or "").encode() + b"\x00")
    raw = memoryview(words.view(np.uint8))  # type: ignore[arg-type]  # numpy arrays are buffers since ever
    step = 4 * block_tokens
    out = []
    for start in range(0, len(words) // block_tokens * step, step):
        hasher.update(raw[start : start + step])
        out.append(hasher.digest(length=8))
    return out

"""A prompt as a chain of block names: equal names mean equal tokens, media and salt from the start up to that block.

Name i = the first 8 bytes of blake3(name i-1, tokens of block i), and the name before the first block is that of the salt. So
a chain can be taken up anywhere, which the exact index does (kv_events/index.py). Placeholder ids of media are replaced by
words drawn from the item's own hash, as engines key their prefix caches: two pictures of one size differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from engine.wire import Item


def media_word(item_hash: str) -> int:
    """The word that stands for each placeholder of an item; no token id is as large."""
    return int(item_hash[:8], 16) | 0x8000_0000


def with_sentinels(ids: NDArray[np.uint32], items: Sequence[Item]) -> NDArray[np.uint32]:
    """`ids` with every placeholder replaced; the same array when there are no items."""
    if not items:
        return ids
    out = ids.copy()
    for item in items:
        word = np.uint32(media_word(item.hash))
        for offset, length in item.ranges:
            out[offset : offset + length] = word
    return out


def root_name(salt: str | None) -> bytes:
    """The name before the first block."""
    return blake3(b"catalejo-route-2\x00" + (salt or "").encode() + b"\x00").digest(length=8)


def next_name(name: bytes, words: bytes | memoryview) -> bytes:
    """The name of the block with these tokens (u32, little-endian) after the block called `name`."""
    return blake3(name).update(words).digest(length=8)


def block_names(ids: NDArray[np.uint32], items: Sequence[Item], salt: str | None, block_tokens: int) -> list[bytes]:
    """One name per whole block, 8 bytes each; the last, partial block has none."""
    words = np.ascontiguousarray(with_sentinels(ids, items), dtype="<u4")
    raw = memoryview(words.view(np.uint8))  # type: ignore[arg-type]  # numpy arrays are buffers since ever
    step = 4 * block_tokens
    name, out = root_name(salt), []
    for start in range(0, len(words) // block_tokens * step, step):
        name = next_name(name, raw[start : start + step])
        out.append(name)
    return out

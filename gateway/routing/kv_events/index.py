"""What one prefix cache holds, from its events: block hash -> the names of our blocks that it completes.

The engine's block hashes are opaque; names are made from the events' own tokens and salt, as those of prompts are. An
engine's block may be smaller or larger than ours: tokens that do not fill one of ours yet are kept with the block.
A block whose parent is not known (its event was missed) has no name; it is counted and otherwise ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from gateway.routing.blocks import next_name, root_name
from gateway.routing.kv_events.messages import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event

ELSEWHERE: Final = "EXTERNAL"
"""A pool that engines share says nothing about one of them."""


class _Block(NamedTuple):
    name: bytes
    """Of the last block of ours that is complete here."""
    rest: bytes
    """Tokens after it, u32."""
    names: tuple[bytes, ...]
    """Those completed by this block."""
    media: frozenset[str]


class TooManyBlocks(Exception):
    """More than any cache of that size can hold: the events are not what they seem."""


class ExactIndex:
    def __init__(self, block_tokens: int, max_blocks: int, word: Callable[[int], int]) -> None:
        """`word(token id of an event)`: the word that stands for it in names (sentinels.py)."""
        self._bytes = 4 * block_tokens
        self._max_blocks = max_blocks
        self._word = word
        self._blocks: dict[BlockHash, _Block] = {}
        self._held: dict[bytes, int] = {}
        self.unmapped = 0

    def __len__(self) -> int:
        """Blocks of ours that are held."""
        return len(self._held)

    def longest(self, names: Sequence[bytes]) -> int:
        """How many leading blocks are held. Caches evict leaves first, so a chain has no holes, and bisection finds its end."""
        if not names or names[0] not in self._held:
            return 0
        low, high = 1, len(names)
        while low < high:
            middle = (low + high + 1) // 2
            if names[middle - 1] in self._held:
                low = middle
            else:
                high = middle - 1
        return low

    def clear(self) -> None:
        self._blocks.clear()
        self._held.clear()

    def apply(self, event: Event) -> None:
        """Raises TooManyBlocks; ValueError for an event that contradicts itself."""
        match event:
            case BlockStored():
                if event.medium != ELSEWHERE:
                    self._store(event)
            case BlockRemoved():
                if event.medium != ELSEWHERE:
                    for block in event.block_hashes:
                        self._remove(block, event.medium or "GPU")
            case AllBlocksCleared():
                self.clear()

    def _store(self, event: BlockStored) -> None:
        size, tokens = event.block_size, event.token_ids
        if size < 1 or len(tokens) != size * len(event.block_hashes):
            raise ValueError(f"{len(event.block_hashes)} blocks of {size} tokens, but {len(tokens)} token ids")
        if event.parent_block_hash is None:
            name, rest = root_name(event.cache_salt), b""
        elif (parent := self._blocks.get(event.parent_block_hash)) is not None:
            name, rest = parent.name, parent.rest
        else:
            self.unmapped += len(event.block_hashes)
            return
        ids = [t if isinstance(t, int) else t[0] for t in tokens]
        words = np.fromiter(map(self._word, ids), dtype="<u4", count=len(ids)).tobytes()
        medium = event.medium or "GPU"
        for i, block in enumerate(event.block_hashes):
            rest += words[4 * size * i : 4 * size * (i + 1)]
            names = []
            while len(rest) >= self._bytes:
                name = next_name(name, rest[: self._bytes])
                rest = rest[self._bytes :]
                names.append(name)
            self._put(block, _Block(name, rest, tuple(names), frozenset((medium,))))

    def _put(self, key: BlockHash, block: _Block) -> None:
        old = self._blocks.get(key)
        if old is not None:
            self._blocks[key] = old._replace(media=old.media | block.media)
            return
        if len(self._blocks) >= self._max_blocks:
            raise TooManyBlocks(f"more than {self._max_blocks} blocks")
        self._blocks[key] = block
        for name in block.names:
            self._held[name] = self._held.get(name, 0) + 1

    def _remove(self, key: BlockHash, medium: str) -> None:
        block = self._blocks.get(key)
        if block is None:
            return
        left = block.media - {medium}
        if left:
            self._blocks[key] = block._replace(media=left)
            return
        del self._blocks[key]
        for name in block.names:
            count = self._held[name] - 1
            if count:
                self._held[name] = count
            else:
                del self._held[name]

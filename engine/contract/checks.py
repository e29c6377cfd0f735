"""What every engine of ours checks of a request alike, before anything is scheduled."""

from __future__ import annotations

import asyncio
from typing import Final

from engine import wire
from engine.contract.errors import ContextTooLong, Refusal

HASH_IN_THREAD_BYTES: Final = 1 << 20
"""From this many bytes on, hashes are verified off the event loop."""


def check_ids(asked: wire.GenerateRequest, context_length: int, vocab_size: int) -> None:
    """Raises ContextTooLong unless one token is left for the answer, Refusal for an id outside the vocabulary."""
    count = len(asked.input_ids)
    if count >= context_length:
        raise ContextTooLong(
            f"the prompt has {count} tokens; the context holds {context_length}, at least one of them for the answer",
            param="input_ids",
        )
    largest = int(asked.input_ids.max())
    if largest >= vocab_size:
        raise Refusal(f"input_ids has {largest}; the vocabulary has {vocab_size} entries", param="input_ids")


async def verify_hashes(items: tuple[wire.Item, ...]) -> None:
    """Raises wire.HashMismatch for the first item whose rows are not what its hash says."""

    def verify() -> None:
        for item in items:
            wire.verify_hash(item)

    if sum(i.nbytes for i in items if i.data is not None) < HASH_IN_THREAD_BYTES:
        verify()
    else:
        await asyncio.to_thread(verify)

"""KV events as SGLang 0.5.23 sends them: a message is [topic, sequence number (8 bytes, big-endian), MessagePack].

The MessagePack is [time, events, data-parallel rank]; an event is a map whose `type` is the class's name. Fields that are not
needed here are skipped, so new ones do no harm."""

from __future__ import annotations

from typing import Final

import msgspec

END_OF_REPLAY: Final = (-1).to_bytes(8, "big", signed=True)
MAX_MESSAGE_BYTES: Final = 64 << 20
BlockHash = int | bytes


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Blocks that follow each other, `block_size` tokens each; the first one follows `parent_block_hash`, None at the start.

    token_ids   u32 ids; a placeholder of media is a word above 10^6 that the engine made from the item's hash; pairs when
                the draft model's keys are bigrams
    medium      GPU, CPU_PINNED, DISK or EXTERNAL; None is GPU
    """

    block_hashes: list[BlockHash]
    token_ids: list[int | tuple[int, int]]
    block_size: int
    parent_block_hash: BlockHash | None = None
    medium: str | None = None
    cache_salt: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True, gc=False):
    """`ts`: the engine's time, seconds; it only grows while one publisher lives."""

    ts: float
    events: list[Event]
    rank: int | None = None


class BadEvents(ValueError):
    """Not of the form above."""


_decoder = msgspec.msgpack.Decoder(Batch)


def decode(payload: bytes) -> Batch:
    """Raises BadEvents."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as e:
        raise BadEvents(str(e)) from None

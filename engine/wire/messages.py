"""The request as typed messages, the constants of version 1, and the hash that names an item."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from engine.wire.errors import HashMismatch

MAGIC: Final = b"CATLJO\x00\x01"
CONTENT_TYPE: Final = "application/x-catalejo-v1"
ROUTE: Final = "/catalejo/v1/generate"
REPLY_CONTENT_TYPE: Final = "application/x-ndjson"
ALIGN: Final = 64
MAX_HEADER_BYTES: Final = 8 << 20
DEFAULT_MAX_BODY_BYTES: Final = 1 << 30
MAX_ITEMS: Final = 4096
MAX_N: Final = 128
MAX_TOP_LOGPROBS: Final = 64
HASH_DOMAIN: Final = b"catalejo-patches-1"
PATCH_CHANNELS_YX: Final = 588  # 3 channels * 14 * 14
MERGE_AREA: Final = 4  # 2x2 patches become one token
KEEP_ALIVE_S: Final = 10.0
"""An engine sends an empty line at least this often while it has nothing to say."""

ROW_BYTES: Final[Mapping[str, int]] = {"u8": 1, "f32": 4, "bf16": 2}
KNOWN_REQUIREMENTS: Final = frozenset(
    {"items", "hash_only", "logprobs", "grammar", "n", "cache_salt", "priority", "stop_token_ids"}
)
"""Entries a sender may put into `require`; anything else is refused, so that a newer gateway fails loudly."""

Modality = Literal["image", "video"]
Rows = Literal["u8", "f32", "bf16"]
IntArray = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constrained decoding. `after_ids`: the constraint begins after the first occurrence of one of these ids in the
    output (the end of thinking); None or empty: from the first token."""

    type: Literal["json_schema", "regex", "ebnf", "structural_tag"]
    value: str
    after_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One image or one video.

    hash    64 hex digits, see `item_hash`
    rows    dtype of the patch rows
    t_dup   1: rows are [t*h*w, 588], order (channel, y, x), the engine repeats the frame (uint8 images only)
            0: rows are [t*h*w, 1176], order (channel, time, y, x)
    grid    (t, h, w) in patches
    ranges  (offset, length) into the expanded input_ids: one for an image, t of h*w/4 for a video
    data    the raw rows, C order, or None: hash only
    """

    modality: Modality
    hash: str
    rows: Rows
    t_dup: int
    grid: tuple[int, int, int]
    ranges: tuple[tuple[int, int], ...]
    data: bytes | memoryview | None = None

    @property
    def shape(self) -> tuple[int, int]:
        t, h, w = self.grid
        return t * h * w, PATCH_CHANNELS_YX * (1 if self.t_dup else 2)

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes, whether or not they are present."""
        n, width = self.shape
        return n * width * ROW_BYTES[self.rows]

    @property
    def tokens(self) -> int:
        t, h, w = self.grid
        return t * h * w // MERGE_AREA


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A generation request. `input_ids` uint32 [prompt_tokens], placeholders already expanded."""

    rid: str
    input_ids: IntArray
    sampling: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    logprobs: int | None = None
    """None: no logprobs. k >= 0: the chosen token's and the k most likely alternatives'."""
    grammar: Grammar | None = None
    cache_salt: str | None = None
    priority: int = 0
    traceparent: str | None = None
    items: tuple[Item, ...] = ()
    require: tuple[str, ...] = ()


def item_hash(modality: str, grid: Sequence[int], rows: str, t_dup: int, data: bytes | memoryview) -> str:
    """blake3-256, hex, over the domain tag, modality, grid (3 x u32 LE), rows, t_dup (u8) and the raw rows.

    Text fields end with a zero byte, so that no two field lists share a byte string."""
    h = blake3()
    h.update(HASH_DOMAIN + b"\x00" + modality.encode() + b"\x00")
    h.update(struct.pack("<3I", *grid) + rows.encode() + b"\x00" + bytes([t_dup]))
    h.update(data)
    return h.hexdigest()


def verify_hash(item: Item) -> None:
    """Raises HashMismatch when the rows present are not what `hash` says."""
    if item.data is not None:
        got = item_hash(item.modality, item.grid, item.rows, item.t_dup, item.data)
        if got != item.hash:
            raise HashMismatch(f"rows hash to {got}, the item says {item.hash}", param="items.hash")


def is_int(value: Any) -> bool:
    """True for JSON integers, false for booleans."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_natural(value: Any) -> bool:
    """True for JSON integers >= 0."""
    return is_int(value) and value >= 0

"""Hand-made frames: a header as a plain dict, so that a test can break one thing at a time."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import orjson

from engine import wire

IMAGE, VIDEO = 500, 501
GRID = (1, 4, 4)
ROWS = bytes(range(256)) * 36 + bytes(192)
"""16 patches of 588 uint8 values."""


def image(offset: int = 1, data: bytes | None = ROWS, **changes: Any) -> wire.Item:
    digest = wire.item_hash("image", GRID, "u8", 1, data if data is not None else ROWS)
    fields = {"modality": "image", "hash": digest, "rows": "u8", "t_dup": 1, "grid": GRID, "ranges": ((offset, 4),)}
    return wire.Item(**{**fields, "data": data, **changes})


def prompt(*placeholders: int) -> np.ndarray:
    """1, then 4 placeholders and a 2 per entry."""
    return np.array([1] + [v for p in placeholders for v in [p] * 4 + [2]], dtype=np.uint32)


def request(**changes: Any) -> wire.GenerateRequest:
    fields: dict[str, Any] = {
        "rid": "r",
        "input_ids": prompt(IMAGE),
        "sampling": {"max_new_tokens": 4},
        "items": (image(),),
    }
    return wire.GenerateRequest(**{**fields, **changes})


def frame(value: wire.GenerateRequest | None = None) -> bytes:
    return b"".join(wire.encode_request(value if value is not None else request()))


def header_of(body: bytes) -> dict[str, Any]:
    (length,) = struct.unpack("<I", body[8:12])
    return orjson.loads(body[12 : 12 + length])


def with_header(body: bytes, header: Any) -> bytes:
    """The same tensors behind another header, which must fit before the first tensor."""
    (length,) = struct.unpack("<I", body[8:12])
    first = -(-(12 + length) // wire.ALIGN) * wire.ALIGN
    raw = header if isinstance(header, bytes) else orjson.dumps(header)
    if 12 + len(raw) > first:
        raise ValueError(f"the new header has {len(raw)} bytes; {first - 12} fit")
    return wire.MAGIC + struct.pack("<I", len(raw)) + raw + bytes(first - 12 - len(raw)) + body[first:]


def roomy_frame(value: wire.GenerateRequest | None = None) -> tuple[dict[str, Any], bytes]:
    """(header, body) with 4 KiB of room for a longer header: an unknown key is padded and then dropped."""
    value = value if value is not None else request()
    padded = wire.GenerateRequest(**{**{n: getattr(value, n) for n in value.__slots__}, "traceparent": "x" * 1000})
    body = frame(padded)
    header = header_of(body)
    header["traceparent"] = value.traceparent
    return header, body

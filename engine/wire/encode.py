"""GenerateRequest -> frame."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson

from engine.wire.errors import HeaderTooLarge
from engine.wire.messages import ALIGN, MAGIC, MAX_HEADER_BYTES, GenerateRequest


def encode_request(request: GenerateRequest) -> list[bytes | memoryview]:
    """The frame as a list of buffers, ids and rows not copied. Join them or hand them to a writer one by one."""
    array = np.ascontiguousarray(request.input_ids, dtype="<u4")
    ids = array.data.cast("B") if array.size else b""
    tensors: list[bytes | memoryview] = [ids, *(i.data for i in request.items if i.data is not None)]
    # Offsets depend on the header's length and the header holds the offsets: place tensors relative to zero, then
    # move the base up until the header fits below it.
    base = ALIGN
    while True:
        offsets = _place(tensors, base)
        header = orjson.dumps(_header(request, offsets))
        needed = _align(12 + len(header))
        if needed <= base:
            break
        base = needed
    if len(header) > MAX_HEADER_BYTES:
        raise HeaderTooLarge(f"header is {len(header)} bytes; the limit is {MAX_HEADER_BYTES}")
    parts: list[bytes | memoryview] = [MAGIC + struct.pack("<I", len(header)) + header]
    position = 12 + len(header)
    for (start, stop), tensor in zip(offsets, tensors, strict=True):
        if start > position:
            parts.append(bytes(start - position))
        parts.append(tensor)
        position = stop
    return parts


def _place(tensors: Iterable[bytes | memoryview], base: int) -> list[tuple[int, int]]:
    out = []
    position = base
    for tensor in tensors:
        size = tensor.nbytes if isinstance(tensor, memoryview) else len(tensor)
        start = _align(position)
        out.append((start, start + size))
        position = start + size
    return out


def _align(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _header(request: GenerateRequest, offsets: list[tuple[int, int]]) -> dict[str, Any]:
    place = iter(offsets)
    grammar = request.grammar
    return {
        "rid": request.rid,
        "input_ids": list(next(place)),
        "n": request.n,
        "sampling": dict(request.sampling),
        "logprobs": request.logprobs,
        "grammar": None
        if grammar is None
        else {
            "type": grammar.type,
            "value": grammar.value,
            "after_ids": None if grammar.after_ids is None else list(grammar.after_ids),
        },
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "traceparent": request.traceparent,
        "require": list(request.require),
        "items": [
            {
                "modality": i.modality,
                "hash": i.hash,
                "rows": i.rows,
                "t_dup": i.t_dup,
                "shape": list(i.shape),
                "grid": list(i.grid),
                "ranges": [list(r) for r in i.ranges],
                "range": None if i.data is None else list(next(place)),
            }
            for i in request.items
        ],
    }

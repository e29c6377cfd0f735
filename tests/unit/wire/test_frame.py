"""What a well-formed frame looks like, byte by byte, and what a reader must tolerate."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from engine import wire
from tests.unit.wire.frames import (
    IMAGE,
    ROWS,
    VIDEO,
    frame,
    header_of,
    image,
    prompt,
    request,
    roomy_frame,
    with_header,
)


def test_layout() -> None:
    body = frame()
    header = header_of(body)
    (length,) = struct.unpack("<I", body[8:12])
    assert body[:8] == b"CATLJO\x00\x01"
    start, end = header["input_ids"]
    assert start == -(-(12 + length) // 64) * 64
    assert not any(body[12 + length : start])
    assert np.frombuffer(body[start:end], "<u4").tolist() == prompt(IMAGE).tolist()
    row_start, row_end = header["items"][0]["range"]
    assert row_start % 64 == 0
    assert row_start >= end
    assert body[row_start:row_end] == ROWS
    assert len(body) == row_end


@pytest.mark.parametrize("rid_length", range(1, 140))
def test_offsets_are_right_for_every_header_length(rid_length: int) -> None:
    decoded = wire.decode_request(frame(request(rid="r" * rid_length)))
    assert bytes(decoded.items[0].data or b"") == ROWS


def test_unknown_keys_are_ignored() -> None:
    header, body = roomy_frame()
    header["from_the_future"] = {"deep": [1, 2]}
    header["items"][0]["colour"] = "red"
    assert wire.decode_request(with_header(body, header)).rid == "r"


def test_absent_and_null_mean_the_default() -> None:
    header, body = roomy_frame()
    for key in ("n", "sampling", "logprobs", "grammar", "cache_salt", "priority", "traceparent", "require"):
        header[key] = None
    as_null = wire.decode_request(with_header(body, header))
    for key in ("n", "sampling", "logprobs", "grammar", "cache_salt", "priority", "traceparent", "require"):
        del header[key]
    absent = wire.decode_request(with_header(body, header))
    for decoded in (as_null, absent):
        assert (decoded.n, decoded.priority, dict(decoded.sampling)) == (1, 0, {})
        assert decoded.logprobs is decoded.grammar is decoded.cache_salt is decoded.traceparent is None


def test_known_requirements_are_accepted() -> None:
    wanted = tuple(sorted(wire.KNOWN_REQUIREMENTS))
    assert wire.decode_request(frame(request(require=wanted))).require == wanted


def test_hash_only_item() -> None:
    decoded = wire.decode_request(frame(request(items=(image(data=None),))))
    (item,) = decoded.items
    assert item.data is None
    assert item.hash == image().hash
    wire.verify_hash(item)
    wire.check_placeholders(decoded, IMAGE, VIDEO)


def test_rows_are_not_copied() -> None:
    data = memoryview(ROWS)
    assert any(part is data for part in wire.encode_request(request(items=(image(data=data),))))
    body = frame()
    view = wire.decode_request(body).items[0].data
    assert isinstance(view, memoryview)
    assert view.obj is body


def test_image_and_video_in_one_prompt() -> None:
    rows = bytes(2 * 16 * 1176)
    video = wire.Item("video", wire.item_hash("video", (2, 4, 4), "u8", 0, rows), "u8", 0, (2, 4, 4),
                      ((6, 4), (11, 4)), rows)  # fmt: skip
    ids = prompt(IMAGE, VIDEO, VIDEO)
    decoded = wire.decode_request(frame(request(input_ids=ids, items=(image(), video))))
    wire.check_placeholders(decoded, IMAGE, VIDEO)
    for item in decoded.items:
        wire.verify_hash(item)
    assert [i.tokens for i in decoded.items] == [4, 8]
    assert [i.nbytes for i in decoded.items] == [len(ROWS), len(rows)]

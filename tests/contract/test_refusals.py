"""What breaks the contract is a 400 with the rule's own code, before anything is scheduled; the engine goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import wire
from tests.contract.client import EngineClient, image_item, image_rows, request, text_ids
from tests.contract.targets import Target
from tests.unit.wire.frames import roomy_frame, with_header


def frame(**fields: Any) -> bytes:
    return b"".join(wire.encode_request(request(**fields)))


def changed(change: Callable[[dict[str, Any]], Any], **fields: Any) -> bytes:
    header, body = roomy_frame(request(**fields))
    change(header)
    return with_header(body, header)


def with_image(target: Target, item: wire.Item, *, placeholders: int = 4, token: int | None = None) -> bytes:
    ids = text_ids(12)
    ids[2 : 2 + placeholders] = target.image_token if token is None else token
    return frame(input_ids=ids, items=(item,))


def _truncated_rows(target: Target) -> bytes:
    return with_image(target, image_item(2, 1))[:-64]


def _wrong_rows(target: Target) -> bytes:
    body = bytearray(with_image(target, image_item(2, 1)))
    body[-1] ^= 1
    return bytes(body)


def _video_as_one_range(target: Target) -> bytes:
    rows = image_rows((2, 4, 4), 3, 1176)
    digest = wire.item_hash("video", (2, 4, 4), "u8", 0, rows)
    ids = text_ids(16)
    ids[2:10] = target.video_token
    return frame(input_ids=ids, items=(wire.Item("video", digest, "u8", 0, (2, 4, 4), ((2, 8),), rows),))


Case = tuple[str, Callable[[Target], bytes], str]
CASES: list[Case] = [
    ("empty body", lambda t: b"", "truncated"),
    ("not a frame", lambda t: b'{"input_ids": [1, 2, 3]}', "bad_magic"),
    ("version 2", lambda t: b"CATLJO\x00\x02" + frame()[8:], "bad_magic"),
    ("header over 8 MiB", lambda t: wire.MAGIC + b"\xff\xff\xff\xff" + bytes(64), "header_too_large"),
    ("header cut", lambda t: frame()[:40], "truncated"),
    ("no rid", lambda t: changed(lambda h: h.pop("rid")), "bad_header"),
    ("n of zero", lambda t: changed(lambda h: h.update(n=0)), "bad_header"),
    ("ids unaligned", lambda t: changed(lambda h: h.update(input_ids=[1028, 1052])), "bad_range"),
    ("no ids", lambda t: frame(input_ids=np.array([], dtype=np.uint32)), "bad_range"),
    ("rows cut", _truncated_rows, "bad_range"),
    ("unknown requirement", lambda t: changed(lambda h: h.update(require=["teleport"])), "unknown_requirement"),
    ("unknown sampling parameter", lambda t: changed(lambda h: h["sampling"].update(mood=1)), "bad_sampling"),
    ("stop strings", lambda t: changed(lambda h: h["sampling"].update(stop=["x"])), "bad_sampling"),
    ("top_p over one", lambda t: changed(lambda h: h["sampling"].update(top_p=1.5)), "bad_sampling"),
    ("grammar of prose", lambda t: changed(lambda h: h.update(grammar={"type": "prose", "value": ""})), "bad_header"),
    ("rows not the hash's", _wrong_rows, "hash_mismatch"),
    ("item over ordinary ids", lambda t: with_image(t, image_item(3, 1)), "bad_item"),
    ("item over video ids", lambda t: with_image(t, image_item(2, 1), token=t.video_token), "bad_item"),
    ("placeholder without item", lambda t: with_image(t, image_item(2, 1), placeholders=5), "bad_item"),
    ("video in one range", _video_as_one_range, "bad_item"),
]


@pytest.mark.parametrize(("make", "code"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
async def test_refused_by_name(
    target: Target, engine: EngineClient, make: Callable[[Target], bytes], code: str
) -> None:
    answer = await engine.send(make(target))
    assert answer.status == 400
    assert answer.error["code"] == code
    assert answer.error["message"]
    assert "json" in answer.headers["content-type"]
    assert (await engine.generate(request())).status == 200


async def test_prompt_longer_than_the_context(target: Target, engine: EngineClient) -> None:
    """The message says both numbers."""
    answer = await engine.send(frame(input_ids=text_ids(target.context_length + 1)))
    assert answer.status == 400
    assert str(target.context_length) in answer.error["message"]
    assert str(target.context_length + 1) in answer.error["message"]


@pytest.mark.parametrize("bad", [2**31, 2**32 - 1])
async def test_id_outside_the_vocabulary(engine: EngineClient, bad: int) -> None:
    ids = text_ids(12)
    ids[5] = bad
    answer = await engine.send(frame(input_ids=ids))
    assert answer.status == 400
    assert (await engine.generate(request())).status == 200


async def test_body_over_the_cap_is_refused_while_it_is_read(target: Target, engine: EngineClient) -> None:
    if target.max_body_bytes is None:
        pytest.skip("this engine's body cap is not known")
    grid = (1, 128, 128)
    ids = np.full(grid[1] * grid[2] // 4 + 2, target.image_token, dtype=np.uint32)
    ids[[0, -1]] = 40
    body = frame(input_ids=ids, items=(image_item(1, 5, grid),))
    assert len(body) > target.max_body_bytes
    answer = await engine.send(body)
    assert answer.status in (400, 413)
    assert answer.error["code"] == "body_too_large"


async def test_many_broken_requests_at_once_leave_nothing_running(target: Target, engine: EngineClient) -> None:
    answers = await asyncio.gather(*(engine.send(_wrong_rows(target)) for _ in range(8)))
    assert {a.status for a in answers} == {400}
    assert await engine.idle_within(2)

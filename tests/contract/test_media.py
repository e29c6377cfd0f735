"""Items: rows by value, by hash alone, missing ones, and their place in the prefix cache."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from engine import wire
from tests.contract.client import EngineClient, image_item, image_rows, request, text_ids, without_rows
from tests.contract.targets import Target, needs_model

SEEDS = itertools.count(1000)


def two_images(target: Target) -> dict[str, Any]:
    ids = text_ids(20)
    ids[2:6] = target.image_token
    ids[10:14] = target.image_token
    return {"input_ids": ids, "items": (image_item(2, next(SEEDS)), image_item(10, next(SEEDS)))}


async def test_image_rows_by_value(target: Target, engine: EngineClient) -> None:
    answer = await engine.generate(request(**two_images(target)))
    assert answer.status == 200
    assert len(answer.choice()) == 8
    assert answer.finish().usage.prompt_tokens == 20


@needs_model
async def test_video_rows_by_value(target: Target, engine: EngineClient) -> None:
    """Two temporal patches, a range each, ordinary ids between them."""
    grid = (2, 4, 4)
    rows = image_rows(grid, next(SEEDS), 1176)
    item = wire.Item("video", wire.item_hash("video", grid, "u8", 0, rows), "u8", 0, grid, ((2, 4), (9, 4)), rows)
    ids = text_ids(20)
    ids[2:6] = target.video_token
    ids[9:13] = target.video_token
    answer = await engine.generate(request(input_ids=ids, items=(item,)))
    assert answer.status == 200
    assert len(answer.choice()) == 8


async def test_float_rows_equal_uint8_rows(target: Target, engine: EngineClient) -> None:
    """The same picture as uint8 with t_dup and as normalised float32 gives the same greedy tokens."""
    mean = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float64)
    std = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float64)
    grid = (1, 4, 4)
    raw = np.frombuffer(image_rows(grid, next(SEEDS)), dtype=np.uint8).reshape(16, 3, 196)
    offset = (255 * mean).astype(np.float32)[None, :, None]
    scale = (255 * std).astype(np.float32)[None, :, None]
    normal = (raw.astype(np.float32) - offset) / scale
    doubled = np.repeat(normal[:, :, None, :], 2, axis=2).astype("<f4").tobytes()
    ids = text_ids(12)
    ids[2:6] = target.image_token
    answers = []
    for rows, t_dup, data in (("u8", 1, raw.tobytes()), ("f32", 0, doubled)):
        digest = wire.item_hash("image", grid, rows, t_dup, data)
        item = wire.Item("image", digest, rows, t_dup, grid, ((2, 4),), data)  # type: ignore[arg-type]
        answers.append((await engine.generate(request(input_ids=ids, items=(item,)))).choice())
    assert answers[0] == answers[1]


async def test_unknown_hash_alone_is_a_409_that_lists_it(target: Target, engine: EngineClient) -> None:
    fields = two_images(target)
    bare = tuple(without_rows(i) for i in fields["items"])
    answer = await engine.generate(request(**{**fields, "items": bare}))
    assert answer.status == 409
    assert answer.error["code"] == "missing_media"
    assert sorted(answer.body["missing"]) == sorted(i.hash for i in bare)


async def test_only_what_is_missing_is_listed(target: Target, engine: EngineClient) -> None:
    fields = two_images(target)
    first, second = fields["items"]
    answer = await engine.generate(request(**{**fields, "items": (first, without_rows(second))}))
    assert answer.status == 409
    assert answer.body["missing"] == [second.hash]


async def test_after_a_409_all_rows_are_sent_and_then_hashes_suffice(target: Target, engine: EngineClient) -> None:
    fields = two_images(target)
    bare = {**fields, "items": tuple(without_rows(i) for i in fields["items"])}
    assert (await engine.generate(request(**bare))).status == 409
    full = await engine.generate(request(**fields))
    assert full.status == 200
    again = await engine.generate(request(**bare))
    assert again.status == 200
    assert again.choice() == full.choice()


async def test_rows_with_a_wrong_hash_do_not_enter_the_store(target: Target, engine: EngineClient) -> None:
    """Or one broken gateway would poison everybody's cache."""
    ids = text_ids(12)
    ids[2:6] = target.image_token
    good = image_item(2, next(SEEDS))
    body = bytearray(b"".join(wire.encode_request(request(input_ids=ids, items=(good,)))))
    body[-1] ^= 1
    assert (await engine.send(bytes(body))).error["code"] == "hash_mismatch"
    answer = await engine.generate(request(input_ids=ids, items=(without_rows(good),)))
    assert answer.status == 409


async def test_a_409_leaves_nothing_running(target: Target, engine: EngineClient) -> None:
    fields = two_images(target)
    bare = tuple(without_rows(i) for i in fields["items"])
    await engine.generate(request(**{**fields, "items": bare}))
    assert await engine.idle_within(1)

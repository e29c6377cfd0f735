"""SGLang with the plugin and the embedded engine give the same greedy tokens, with and without pictures.

The tiny checkpoint attends to 4 blocks of 16 tokens, so prompts over 64 tokens are sparse. Random weights leave near ties:
tokens must be equal up to a step where the two best candidates are closer than float32 arithmetic can tell apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import wire
from tests.contract.client import Answer, EngineClient, image_item, request, text_ids

TIE = 2e-4
IMAGE, VIDEO = 500, 501


async def both(engine: EngineClient, oracle: EngineClient, **fields: Any) -> tuple[Answer, Answer]:
    ours = await engine.generate(request(logprobs=2, **fields))
    theirs = await oracle.generate(request(logprobs=2, **fields))
    assert ours.status == theirs.status == 200, (ours.error, theirs.error)
    return ours, theirs


def assert_equal(ours: Answer, theirs: Answer, at_least: int = 4) -> None:
    for step, (a, b) in enumerate(zip(ours.rows(), theirs.rows(), strict=True)):
        if a[1] != b[1]:
            (best, _), (second, _) = b[2][:2]
            assert best - second < TIE, f"step {step}: {a} against {b}"
            assert step >= at_least, f"a tie at step {step}: choose another prompt"
            return
        assert abs(a[0] - b[0]) < 5e-3, f"step {step}: logprob {a[0]} against {b[0]}"


@pytest.mark.parametrize("length", [3, 16, 65, 130, 700, 3000])
async def test_text(engine: EngineClient, oracle: EngineClient, length: int) -> None:
    assert_equal(*await both(engine, oracle, input_ids=text_ids(length, length)))


def video_item(offsets: list[int], grid: tuple[int, int, int], seed: int) -> wire.Item:
    t, h, w = grid
    rows = np.random.default_rng(seed).standard_normal((t * h * w, 1176)).astype(np.float32).tobytes()
    digest = wire.item_hash("video", grid, "f32", 0, rows)
    return wire.Item("video", digest, "f32", 0, grid, tuple((o, h * w // 4) for o in offsets), rows)


def mixed(seed: int = 1) -> dict[str, Any]:
    """Text, an image, a video of 6 temporal patches (two segments), text, another image."""
    ids = text_ids(160, seed)
    first, second = image_item(8, seed, (1, 8, 6)), image_item(140, seed + 1, (1, 4, 4))
    video = video_item([30 + 8 * i for i in range(6)], (6, 4, 4), seed + 2)
    for item, token in ((first, IMAGE), (second, IMAGE), (video, VIDEO)):
        for offset, length in item.ranges:
            ids[offset : offset + length] = token
    return {"input_ids": ids, "items": (first, video, second)}


@pytest.mark.parametrize("seed", [1, 20])
async def test_two_images_and_a_video_between_text(engine: EngineClient, oracle: EngineClient, seed: int) -> None:
    assert_equal(*await both(engine, oracle, **mixed(seed)))


async def test_another_picture_gives_another_answer(engine: EngineClient) -> None:
    """The same ids with other pixels: pictures are looked at, and told apart in the prefix cache."""
    one = mixed(1)
    other = {**one, "items": mixed(3)["items"]}
    answers = [
        await engine.generate(request(logprobs=0, cache_salt="pixels", **fields)) for fields in (one, other, one)
    ]
    rows = [[row[0] for row in a.rows()] for a in answers]
    assert rows[0] != rows[1]
    assert rows[0] == pytest.approx(rows[2], abs=1e-3)
    assert answers[1].finish().usage.cached_tokens <= 8


@pytest.mark.parametrize("kept", [16, 70, 155])
async def test_a_hit_that_ends_in_the_middle(engine: EngineClient, oracle: EngineClient, kept: int) -> None:
    """A second prompt shares the first `kept` tokens, which may end inside a picture."""
    first = mixed(1)
    salt = f"hit-{kept}"
    await engine.generate(request(cache_salt=salt, **first))
    ids = first["input_ids"].copy()
    free = [i for i in range(kept, 160) if ids[i] not in (IMAGE, VIDEO)]
    ids[free[0]] = 77
    changed = {**first, "input_ids": ids}
    ours = await engine.generate(request(logprobs=2, cache_salt=salt, **changed))
    theirs = await oracle.generate(request(logprobs=2, **changed))
    assert ours.finish().usage.cached_tokens == free[0] // 16 * 16
    assert_equal(ours, theirs)


async def test_float_rows_of_a_picture_equal_its_bytes(engine: EngineClient) -> None:
    """What the gateway may send either way means the same."""
    from engine.contract.pixels import normalisation_table

    raw = image_item(8, 9, (1, 4, 4))
    levels = np.frombuffer(raw.data or b"", dtype=np.uint8).reshape(16, 3, 196)
    values = np.stack([normalisation_table()[c][levels[:, c]] for c in range(3)], 1)
    rows = np.repeat(values[:, :, None], 2, axis=2).astype(np.float32).tobytes()
    digest = wire.item_hash("image", raw.grid, "f32", 0, rows)
    floats = wire.Item("image", digest, "f32", 0, raw.grid, raw.ranges, rows)
    ids = text_ids(40, 9)
    ids[8:12] = IMAGE
    answers = [await engine.generate(request(input_ids=ids, items=(item,), logprobs=0)) for item in (raw, floats)]
    assert [r[0] for r in answers[0].rows()] == pytest.approx([r[0] for r in answers[1].rows()], abs=1e-5)


async def test_the_paths_are_in_the_metrics(engine: EngineClient) -> None:
    await engine.generate(request(input_ids=text_ids(100, 1)))
    _, text = await engine.get("/metrics")
    for phase in ("prefill", "decode"):
        assert f'catalejo_msa_layers_total{{path="reference",phase="{phase}"' in text
    assert 'path="sglang"' not in text


async def test_the_engine_says_what_it_is(engine: EngineClient) -> None:
    status, body = await engine.get("/model_info")
    assert status == 200
    assert body["catalejo"]["version"] == 1
    assert body["catalejo"]["engine"] == "sglang"
    assert body["catalejo"]["seeds"] is True

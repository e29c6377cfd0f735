"""Patch rows become exactly what the reference processor makes of the same picture."""

import numpy as np
import torch
from PIL import Image
from transformers.models.minimax_m3_vl import MiniMaxM3VLImageProcessor

from engine import wire
from engine.local.vision import FeatureCache, normalisation_table, pixel_rows
from tests.unit.engine.harness import TINY, Prompt, hf, model, segments


def patches(picture):
    """[h/14 * w/14, 588] uint8 of an aligned picture [h, w, 3], in the order of 2x2 merge blocks."""
    h, w, _ = picture.shape
    blocks = picture.transpose(2, 0, 1).reshape(3, h // 28, 2, 14, w // 28, 2, 14)
    return blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 588)


def item(rows, grid, kind="u8", t_dup=1, modality="image"):
    data = rows.tobytes()
    t, h, w = grid
    ranges = tuple((k * h * w // 4, h * w // 4) for k in range(t))
    return wire.Item(modality, wire.item_hash(modality, grid, kind, t_dup, data), kind, t_dup, grid, ranges, data)


def test_uint8_rows_are_normalised_to_the_reference_processors_bits():
    every_level = np.arange(256, dtype=np.uint8).repeat(28 * 28 * 3 // 256 + 1)[: 28 * 28 * 3].reshape(28, 28, 3)
    noise = np.random.default_rng(0).integers(0, 256, (84, 140, 3), dtype=np.uint8)
    processor = MiniMaxM3VLImageProcessor.from_pretrained(TINY, do_resize=False)
    for picture in (np.tile(every_level, (2, 2, 1)), noise):
        want = processor(images=[Image.fromarray(picture)], return_tensors="pt")
        grid = tuple(want["image_grid_thw"][0].tolist())
        one = item(patches(picture), grid)
        assert torch.equal(pixel_rows(one, one.data, 0, 1, normalisation_table()), want["pixel_values"])


def test_float_rows_pass_through():
    rows = np.random.default_rng(1).normal(size=(16, 1176)).astype("<f4")
    full = item(rows, (1, 4, 4), "f32", 0)
    assert torch.equal(pixel_rows(full, full.data, 0, 1, normalisation_table()), torch.from_numpy(rows))
    half = torch.from_numpy(rows).bfloat16()
    short = item(half.view(torch.int16).numpy(), (1, 4, 4), "bf16", 0)
    assert torch.equal(pixel_rows(short, short.data, 0, 1, normalisation_table()), half.float())


def test_video_rows_are_cut_by_temporal_patch():
    rows = np.random.default_rng(2).integers(0, 256, (6 * 16, 1176), dtype=np.uint8)
    video = item(rows, (6, 4, 4), "u8", 0, "video")
    table = normalisation_table()
    whole = pixel_rows(video, video.data, 0, 6, table)
    assert torch.equal(pixel_rows(video, video.data, 4, 6, table), whole[64:])
    channel = np.arange(1176) // 392
    assert torch.equal(whole, table[torch.from_numpy(channel), torch.from_numpy(rows).long()])


@torch.inference_mode()
def test_a_video_is_computed_in_segments_of_four_temporal_patches():
    prompt = Prompt().video(6, 4, 6, 5)
    (video,) = prompt.items
    cache = FeatureCache(model(), 1 << 30)
    runs = cache.rows(video, video.data, 0, len(prompt.ids))
    assert [at for at, _ in runs] == [r[0] for r in video.ranges]
    assert cache.computed == 2
    inputs = prompt.inputs()
    assert inputs["video_grid_thw"].tolist() == [list(s) for s in segments(video)] == [[4, 4, 6], [2, 4, 6]]
    want = hf().model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"], return_dict=True)
    assert torch.allclose(torch.cat([v for _, v in runs]), torch.cat(want.pooler_output), atol=1e-5)


@torch.inference_mode()
def test_only_the_segments_a_chunk_reaches_are_computed():
    prompt = Prompt().video(9, 4, 4, 6)
    (video,) = prompt.items
    cache = FeatureCache(model(), 1 << 30)
    middle = video.ranges[5][0]
    runs = cache.rows(video, video.data, middle + 1, middle + 3)
    assert [(at, len(v)) for at, v in runs] == [(middle + 1, 2)]
    assert cache.computed == 1
    assert cache.rows(video, video.data, 0, video.ranges[0][0]) == []


@torch.inference_mode()
def test_kept_features_are_bounded():
    cache = FeatureCache(model(), 3000)
    items = [Prompt().image(4, 4, seed).items[0] for seed in range(4)]  # 4 tokens * 128 * 4 bytes = 2048 each
    for one in items:
        cache.segment(one, 0, one.data)
    assert cache.computed == 4
    cache.segment(items[3], 0, items[3].data)
    assert cache.computed == 4
    cache.segment(items[0], 0, items[0].data)
    assert cache.computed == 5

"""Bit parity with the reference processor on its golden vectors, and with the contract's hash."""

import hashlib
import json

import numpy as np
import pytest

import preproc_rs
from engine.wire import item_hash

from . import resize_ref as ref
from .paths import GOLDEN

VECTORS = json.loads((GOLDEN / "golden.json").read_text())


def source(row: dict) -> bytes:
    stored = GOLDEN / f"{row['key']}.png"
    if stored.exists():
        return stored.read_bytes()
    pixels = ref.formula(row["h"], row["w"])
    return ref.png(pixels[..., 0] if row["mode"] == "L" else pixels)


@pytest.mark.parametrize("row", VECTORS["images"], ids=lambda r: r["key"])
def test_rows_equal_the_reference(row):
    data = source(row)
    floats = preproc_rs.prepare_image(data, size_rule="area", rows="f32")
    assert floats.patches.dtype == np.float32 and floats.patches.flags.c_contiguous
    assert hashlib.sha256(floats.patches.astype("<f4").tobytes()).hexdigest() == row["pixel_values_sha256"]
    assert (floats.t_dup, floats.rows) == (0, "f32")

    small = preproc_rs.prepare_image(data, size_rule="area")
    resized = ref.picture(small.patches, small.grid_thw)
    assert hashlib.sha256(resized.tobytes()).hexdigest() == row["resized_uint8_sha256"]
    assert np.array_equal(ref.float_rows(resized), floats.patches)
    assert small.patches.shape == (small.tokens * 4, 588) and small.t_dup == 1
    for prepared in (small, floats):
        assert list(prepared.grid_thw) == row["grid"] and list(prepared.resized_hw) == row["resized"]
        assert prepared.tokens == row["tokens"] and (prepared.width, prepared.height) == (row["w"], row["h"])
        rows = memoryview(prepared.patches).cast("B")
        assert prepared.hash == item_hash("image", prepared.grid_thw, prepared.rows, prepared.t_dup, rows)


def blank(h: int, w: int) -> bytes:
    return ref.png(np.zeros((h, w), np.uint8))


@pytest.mark.parametrize("row", VECTORS["smart_resize_image"], ids=lambda r: f"{r['h']}x{r['w']}")
def test_area_rule(row):
    if "error" in row:
        with pytest.raises(preproc_rs.PreprocError) as caught:
            preproc_rs.probe(blank(row["h"], row["w"]), size_rule="area")
        assert caught.value.code == "bad_aspect_ratio" and "200" in caught.value.message
        return
    got = preproc_rs.prepare_image(blank(row["h"], row["w"]), size_rule="area")
    assert list(got.resized_hw) == row["out"] and list(got.grid_thw) == row["grid"] and got.tokens == row["tokens"]


@pytest.mark.parametrize(
    ("h", "w", "tokens"), [(1080, 1920, 2691), (3000, 4000, 3888), (2200, 1700, 4032), (48, 64, 20), (1, 1, 16)]
)
def test_long_side_rule_is_the_default(h, w, tokens):
    assert preproc_rs.probe(blank(h, w)) == ("png", w, h, tokens)


def test_long_side_cap():
    pixels = ref.formula(300, 500)
    got = preproc_rs.prepare_image(ref.png(pixels), max_long_side_pixel=224)
    assert got.resized_hw == (140, 224)
    assert np.array_equal(ref.picture(got.patches, got.grid_thw), ref.resize(pixels, 140, 224))

"""Random sizes: rows equal the numpy reference bit for bit, through both size rules and up to aspect ratio 200."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import preproc_rs
from tests.unit.preproc import resize_ref as ref
from tests.unit.preproc.paths import refusal

COMMON = settings(max_examples=40, derandomize=True)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    """(h, w): thin, square-ish, exactly at the ratio limit; at most 60,000 pixels."""
    short = draw(st.integers(1, 60) | st.sampled_from([1, 2, 13, 14, 15, 27, 28, 29, 56]))
    ratio = draw(st.floats(1, 3) | st.floats(1, 200) | st.just(200.0))
    long = min(int(short * ratio), 60_000 // short)
    long = max(long, short)
    return draw(st.sampled_from([(short, long), (long, short)]))


def picture(size: tuple[int, int], seed: int) -> np.ndarray:
    """Black, white and noise: overshoot is clamped everywhere."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (*size, 3), np.uint8)
    return np.where(rng.random((*size, 1)) < 0.7, np.where(noise < 128, 0, 255), noise).astype(np.uint8)


def check(pixels: np.ndarray, **options: object) -> None:
    data = ref.png(pixels)
    got = preproc_rs.prepare_image(data, **options)
    expected = ref.resize(pixels, *got.resized_hw)
    assert np.array_equal(got.patches, ref.byte_rows(expected))
    floats = preproc_rs.prepare_image(data, rows="f32", **options)
    assert np.array_equal(floats.patches, ref.float_rows(expected))
    _, gh, gw = got.grid_thw
    assert (gh * 14, gw * 14) == got.resized_hw and got.tokens == gh * gw // 4


@COMMON
@given(size=sizes(), seed=st.integers(0, 2**32 - 1))
def test_area_rule(size, seed):
    check(picture(size, seed), size_rule="area")


@COMMON
@given(size=sizes(), seed=st.integers(0, 2**32 - 1), cap=st.integers(4, 20))
def test_long_side_rule(size, seed, cap):
    check(picture(size, seed), max_long_side_pixel=28 * cap)


@pytest.mark.parametrize(("h", "w"), [(1, 200), (200, 1), (2, 400), (1500, 1000), (700, 701), (3, 3)])
def test_chosen_sizes(h, w):
    check(picture((h, w), h * w), size_rule="area")


@COMMON
@given(data=st.binary(max_size=400))
def test_any_bytes_give_rows_or_a_typed_error(data):
    for head in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\0\0\0\0WEBP", b"BM"):
        refusal(preproc_rs.prepare_image, head + data, max_pixels=1_000_000)


@COMMON
@given(text=st.text(max_size=200))
def test_any_text_is_a_data_url_or_a_typed_error(text):
    for url in (text, "data:" + text, "data:image/png;base64," + text):
        error = refusal(preproc_rs.decode_data_url, url, 1000)
        assert error is None or error.code in ("bad_data_url", "too_many_bytes")

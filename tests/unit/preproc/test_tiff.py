"""TIFF, in builds with feature `tiff`: Pillow's pixels. Layouts and hostile files: preproc_rs/src/decode/tiff/tests.rs."""

import numpy as np
import pytest
from PIL import Image, ImageOps

import preproc_rs

from .paths import refusal
from .test_decoders import GRAY, RGB, RGBA, SIZE, ours, pillow, save

pytestmark = pytest.mark.skipif("TIFF" not in preproc_rs.IMAGE_FORMATS, reason="built without tiff")

MODES = {
    "1": GRAY.convert("1"),
    "L": GRAY,
    "LA": RGBA.convert("LA"),
    "P": RGB.quantize(200),
    "PA": RGB.quantize(200).convert("PA"),
    "RGB": RGB,
    "RGBX": RGB.convert("RGBX"),
    "RGBA": RGBA,
    "CMYK": RGB.convert("CMYK"),
}
COMPRESSIONS = [None, "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("mode", MODES)
def test_pixels_equal_pillow(mode: str, compression: str | None) -> None:
    data = save(MODES[mode], "TIFF", compression=compression)
    assert np.array_equal(ours(data), pillow(data))


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate"])
def test_differences_of_neighbours_equal_pillow(compression: str) -> None:
    data = save(RGB, "TIFF", compression=compression, tiffinfo={317: 2})
    assert np.array_equal(ours(data), pillow(data))


def test_sixteen_bits_keep_the_high_byte() -> None:
    deep = (np.arange(SIZE[0] * SIZE[1], dtype=np.uint32) * 7 % 65536).astype(np.uint16).reshape(SIZE)
    for compression in COMPRESSIONS:
        data = save(Image.fromarray(deep), "TIFF", compression=compression)
        assert np.array_equal(ours(data)[..., 0], deep >> 8)


@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_equals_turning_the_decoded_picture(value: int) -> None:
    data = save(RGB, "TIFF", tiffinfo={0x0112: value})
    exif = Image.Exif()
    exif[0x0112] = value
    plain = save(RGB, "PNG", exif=exif.tobytes())
    assert np.array_equal(ours(data), ours(plain))
    assert np.array_equal(ours(data, apply_exif=False), np.asarray(RGB))


def test_the_first_page_is_the_picture() -> None:
    data = save(RGB, "TIFF", save_all=True, append_images=[ImageOps.invert(RGB), Image.new("L", (9, 9))])
    assert np.array_equal(ours(data), np.asarray(RGB))


@pytest.mark.parametrize(
    ("image", "compression", "words"),
    [
        (GRAY.convert("1"), "group4", "compression 4 (fax)"),
        (RGB, "jpeg", "compression 7 (JPEG)"),
        (GRAY.convert("F"), None, "32 bits a sample of format 3"),
        (RGB.convert("LAB"), None, "colour kind 8"),
    ],
)
def test_what_is_not_read_is_refused_by_name(image: Image.Image, compression: str | None, words: str) -> None:
    error = refusal(preproc_rs.prepare_image, save(image, "TIFF", compression=compression))
    assert error is not None
    assert error.code == "unsupported_format" and words in error.message

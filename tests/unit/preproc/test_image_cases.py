"""Every image of the hostile set: outcome, size, grid, pixels, time; memory in a process of its own."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

import preproc_rs

from . import resize_ref as ref
from .paths import MEDIA, cases, refusal

OFF = {name for name in ("tiff", "avif", "heic") if name.upper() not in preproc_rs.IMAGE_FORMATS}
TAKEN = f"{', '.join(preproc_rs.IMAGE_FORMATS[:-1])} or {preproc_rs.IMAGE_FORMATS[-1]}"
REFUSED = {
    "h1_w201.png": ("bad_aspect_ratio", "200"),
    "w1_h300.png": ("bad_aspect_ratio", "200"),
    "zero_width.png": ("bad_dimensions", "0 x 10"),
    "bomb_header_60000x60000.png": ("too_many_pixels", "60000 x 60000"),
    "bomb_real_20000x20000_1bit.png": ("too_many_pixels", "100.0 megapixels"),
    "bomb_header_65500.jpg": ("too_many_pixels", "65500 x 65500"),
    "bomb_gif_65535x8191.gif": ("too_many_pixels", "65535 x 8191"),
    "bomb_webp_16384.webp": ("too_many_pixels", "16384 x 16384"),
    "truncated_half.jpg": ("truncated", "too early"),
    "header_only.jpg": ("corrupt", "JPEG"),
    "truncated.png": ("truncated", "too early"),
    "corrupt_idat.png": ("corrupt", "PNG"),
    "trailing_crc_bad.png": ("corrupt", "CRC"),
    "truncated.webp": ("truncated", "too early"),
    "empty.bin": ("truncated", "empty"),
    "one_byte.bin": ("unsupported_format", "JPEG, PNG"),
    "random_2k.bin": ("unsupported_format", "JPEG, PNG"),
    "html_as_image.jpg": ("unsupported_format", "JPEG, PNG"),
    "svg.svg": ("unsupported_format", "svg"),
    "eps.eps": ("unsupported_format", "JPEG, PNG"),
    "pdf.pdf": ("unsupported_format", "pdf"),
    "playlist.m3u8": ("unsupported_format", "JPEG, PNG"),
    "concat.txt": ("unsupported_format", "JPEG, PNG"),
    "sdp.sdp": ("unsupported_format", "JPEG, PNG"),
}


@pytest.mark.parametrize("case", cases("image"), ids=lambda c: c["file"])
def test_outcome(case):
    data = (MEDIA / case["file"]).read_bytes()
    begin = time.monotonic()
    error = refusal(preproc_rs.prepare_image, data, size_rule="area")
    assert time.monotonic() - begin < 2
    if error is not None:
        assert case["file"] in REFUSED or case["cls"] in OFF
        code, words = REFUSED.get(case["file"], ("decoder_disabled", TAKEN))
        assert error.code == code and words in error.message
        return
    got = preproc_rs.prepare_image(data, size_rule="area")
    assert case["expect"] in ("ok", "ok_or_400")
    assert [got.width, got.height] == case["size"]
    if "m3_resized_hw" in case:
        assert list(got.resized_hw) == case["m3_resized_hw"] and list(got.grid_thw) == case["m3_grid_thw"]


@pytest.mark.parametrize(
    "case", [c for c in cases("image") if "first_pixel" in c and c["cls"] not in OFF], ids=lambda c: c["file"]
)
def test_corner_pixels(case):
    """The cap is chosen so that small pictures keep their corners: compare the resized corner loosely, and exactly where
    the size is a multiple of 28 already. The decoded pixels themselves are compared in test_decoders."""
    got = preproc_rs.prepare_image((MEDIA / case["file"]).read_bytes())
    small = ref.picture(got.patches, got.grid_thw).astype(int)
    near = case["tol"] + 12
    assert np.abs(small[0, 0] - case["first_pixel"]).max() <= near
    if "last_pixel" in case:
        assert np.abs(small[-1, -1] - case["last_pixel"]).max() <= near


def test_a_lossless_webp_of_38_bytes_may_not_take_762_mib():
    """10000 x 9990 pixels of one colour: within the pixel budget, but libwebp holds them twice."""
    data = bytes.fromhex("524946461e000000574542505650384c110000002f0f67c11907d0b12614b9788188e87f0000")
    error = refusal(preproc_rs.prepare_image, data)
    assert error.code == "limit_exceeded" and "762 MiB; the limit is 400 MiB" in error.message


MEASURE = """
import json, sys, preproc_rs, numpy
def peak():  # of this program: ru_maxrss would start from the parent's, which a test runner fills with torch
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10
peaks = {}
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    try:
        preproc_rs.prepare_image(data)
    except preproc_rs.PreprocError:
        pass
    peaks[path] = peak()
print(json.dumps(peaks))
"""


def test_memory_of_all_files_in_one_process():
    files = [str(MEDIA / c["file"]) for c in cases("image")]
    out = subprocess.run([sys.executable, "-c", MEASURE, *files], capture_output=True, text=True, check=True).stdout
    peaks = json.loads(out)
    assert max(peaks.values()) < 512
    before, bomb = (str(MEDIA / n) for n in ("zero_width.png", "bomb_webp_16384.webp"))
    assert peaks[bomb] - peaks[before] < 32, "a refused bomb must not cost memory"

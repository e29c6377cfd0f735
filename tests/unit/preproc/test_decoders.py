"""Decoded pixels equal Pillow's for every format it decodes the same way; the exceptions are decisions, tested here too."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image

import preproc_rs

from . import resize_ref as ref
from .paths import MEDIA, refusal

SIZE = (168, 224)  # multiples of 28 above the floor of 112: the long-side rule changes nothing


def smooth(alpha: bool = False) -> np.ndarray:
    h, w = SIZE
    y, x = np.mgrid[0:h, 0:w]
    planes = [x * 255 // w, y * 255 // h, (x + y) % 256] + ([(x * 3) % 256] if alpha else [])
    return np.stack(planes, -1).astype(np.uint8)


def save(image: Image.Image, format_: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format_, **options)
    return out.getvalue()


def ours(data: bytes, **options: object) -> np.ndarray:
    got = preproc_rs.prepare_image(data, **options)
    assert got.resized_hw == (got.height, got.width), "the size must stay for this comparison"
    return ref.picture(got.patches, got.grid_thw)


def pillow(data: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(data))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (255,) * 4), image)
    return np.asarray(image.convert("RGB"))


RGB, RGBA = Image.fromarray(smooth()), Image.fromarray(smooth(alpha=True))
GRAY = Image.fromarray(smooth()[..., 2])
SAME = {
    "jpeg 420": save(RGB, "JPEG", quality=90),
    "jpeg 444": save(RGB, "JPEG", quality=90, subsampling=0),
    "jpeg 422": save(RGB, "JPEG", quality=30, subsampling=1),
    "jpeg progressive": save(RGB, "JPEG", progressive=True),
    "jpeg optimised": save(RGB, "JPEG", optimize=True),
    "jpeg gray": save(GRAY, "JPEG"),
    "jpeg cmyk": save(RGB.convert("CMYK"), "JPEG"),
    "jpeg restart": save(RGB, "JPEG", restart_marker_blocks=4),
    "png rgb": save(RGB, "PNG"),
    "png rgba": save(RGBA, "PNG"),
    "png gray": save(GRAY, "PNG"),
    "png gray alpha": save(RGBA.convert("LA"), "PNG"),
    "png palette": save(RGB.quantize(200), "PNG"),
    "png palette 4 bits": save(RGB.quantize(13), "PNG"),
    "png palette transparent": save(RGB.quantize(20), "PNG", transparency=3),
    "png 1 bit": save(GRAY.convert("1"), "PNG"),
    "webp lossy": save(RGB, "WEBP", quality=80),
    "webp lossless": save(RGB, "WEBP", lossless=True),
    "webp lossy alpha": save(RGBA, "WEBP", quality=80),
    "webp lossless alpha": save(RGBA, "WEBP", lossless=True, exact=True),
    "gif": save(RGB.quantize(64), "GIF"),
    "gif gray": save(GRAY, "GIF"),
    "gif transparent": save(RGB.quantize(64), "GIF", transparency=5),
    "bmp 24": save(RGB, "BMP"),
    "bmp 8 palette": save(RGB.quantize(100), "BMP"),
    "bmp gray": save(GRAY, "BMP"),
    "bmp 1": save(GRAY.convert("1"), "BMP"),
    "bmp 32": save(RGBA, "BMP"),
}


@pytest.mark.parametrize("name", SAME)
def test_pixels_equal_pillow(name):
    assert np.array_equal(ours(SAME[name]), pillow(SAME[name]))


@pytest.mark.parametrize("form", preproc_rs.RESIZE_FORMS)
@pytest.mark.parametrize("quality", [40, 95])
@pytest.mark.parametrize("options", [{"subsampling": s} for s in range(3)] + [{"progressive": True}])
def test_resized_jpegs_equal_pillow_then_reference(options, quality, form):
    """Some forms of the resize take a JPEG's planes and make RGB themselves."""
    pixels = np.random.default_rng(quality).integers(0, 256, (90, 131, 3)).astype(np.uint8)
    picture = Image.fromarray(pixels).resize((1303, 701), Image.Resampling.BICUBIC)
    data = save(picture, "JPEG", quality=quality, **options)
    got = preproc_rs.prepare_image(data, size_rule="area", resize_form=form)
    assert np.array_equal(got.patches, ref.byte_rows(ref.resize(pillow(data), *got.resized_hw)))


@pytest.mark.parametrize("format_", ["GIF", "PNG", "WEBP"])
def test_an_animation_gives_its_first_frame(format_):
    others = [Image.new("RGB", RGB.size, c) for c in ("red", "green")]
    options = {"lossless": True} if format_ == "WEBP" else {}
    first = RGB.quantize(64).convert("RGB") if format_ == "GIF" else RGB
    data = save(first, format_, save_all=True, append_images=others, duration=50, **options)
    assert np.array_equal(ours(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_orientation_equals_turning_the_decoded_picture(value, format_):
    exif = Image.Exif()
    exif[0x0112] = value
    data = save(RGB, format_, exif=exif.tobytes(), **({"lossless": True} if format_ == "WEBP" else {}))
    from PIL import ImageOps

    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(ours(data), expected)
    small = preproc_rs.prepare_image(data, max_long_side_pixel=140)  # with a resize: the upright picture is resized
    assert np.array_equal(small.patches, ref.byte_rows(ref.resize(expected, *small.resized_hw)))


def test_sixteen_bits_keep_the_high_byte():
    deep = (np.arange(SIZE[0] * SIZE[1], dtype=np.uint32) * 7 % 65536).astype(np.uint16).reshape(SIZE)
    data = save(Image.fromarray(deep), "PNG")
    assert np.array_equal(ours(data)[..., 0], deep >> 8)


def bmp(
    bits: int, compression: int, body: bytes, palette: bytes = b"", masks: bytes = b"", top_down: bool = False
) -> bytes:
    import struct

    h, w = SIZE
    at = 14 + 40 + len(masks) + len(palette)
    info = struct.pack(
        "<IiiHHIIiiII", 40, w, -h if top_down else h, 1, bits, compression, len(body), 0, 0, len(palette) // 4, 0
    )
    return b"BM" + struct.pack("<IHHI", at + len(body), 0, 0, at) + info + masks + palette + body


def test_bmp_16_bits_and_bit_fields():
    import struct

    a = smooth().astype(np.uint16)
    five = (a[..., 0] >> 3 << 10 | a[..., 1] >> 3 << 5 | a[..., 2] >> 3).astype("<u2")
    six = (a[..., 0] >> 3 << 11 | a[..., 1] >> 2 << 5 | a[..., 2] >> 3).astype("<u2")
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
    for data in (bmp(16, 0, five[::-1].tobytes()), bmp(16, 3, six.tobytes(), masks=masks, top_down=True)):
        assert np.array_equal(ours(data), pillow(data))


def test_bmp_runs():
    h, w = SIZE
    palette = bytes(v for i in range(256) for v in (i, 255 - i, i // 2, 0))
    body = b""
    for y in range(h):
        body += bytes([w // 2, y % 256, w // 2 - 4, (y * 3) % 256, 0, 4, 1, 2, 3, 4]) + b"\0\0"
    data = bmp(8, 1, body + b"\0\1", palette)
    assert np.array_equal(ours(data), pillow(data))


def test_bmp_without_an_offset_or_with_blank_masks():
    """Pillow's reading: no offset means right behind the header and palette, blank masks mean BGRA."""
    import struct

    eight = bytearray(SAME["bmp 8 palette"])
    eight[10:14] = bytes(4)
    blank = bmp(32, 3, smooth(alpha=True).tobytes(), masks=bytes(12))
    for data in (bytes(eight), blank):
        assert np.array_equal(ours(data), pillow(data))
    whole = SAME["bmp 24"]  # OS/2's header of 16 bytes, which Pillow does not read
    short = whole[:10] + struct.pack("<II", 30, 16) + whole[18:30] + whole[54:]
    assert np.array_equal(ours(short), smooth())


def scan_starts(jpeg: bytes) -> list[int]:
    """Where the segments of every scan but the first begin."""
    starts, at = [], 2
    while jpeg[at + 1] != 0xD9:
        marker, size = jpeg[at + 1], int.from_bytes(jpeg[at + 2 : at + 4], "big")
        at += 2 + size
        if marker == 0xDA:
            while jpeg[at] != 0xFF or jpeg[at + 1] in (0, *range(0xD0, 0xD8)):
                at += 1
            starts.append(at)
    return starts[:-1]


def test_a_jpeg_cut_between_its_scans_is_refused():
    """No decoder warns there; only the end marker may be missing."""
    data = SAME["jpeg progressive"]
    cuts = scan_starts(data)
    assert len(cuts) > 5
    for cut in cuts:
        refused = refusal(preproc_rs.prepare_image, data[:cut])
        assert refused is not None and refused.code == "truncated"
    assert np.array_equal(ours(data[:-2]), pillow(data))
    # With an end marker, a file may do without its last refinements: some tools drop them on purpose.
    fewer = data[: cuts[-1]] + b"\xff\xd9"
    assert np.array_equal(ours(fewer), pillow(fewer))


def test_every_cut_of_every_format_is_typed():
    """Never a crash, never another exception, and a picture cut in half is refused."""
    for data in SAME.values():
        for cut in (*range(0, 64, 3), *range(64, len(data), max(1, len(data) // 40))):
            refusal(preproc_rs.prepare_image, data[:cut])
        assert refusal(preproc_rs.prepare_image, data[: len(data) // 2])


def test_flipped_bytes_are_typed():
    rng = np.random.default_rng(1)
    for data in SAME.values():
        for _ in range(30):
            broken = bytearray(data)
            for at in rng.integers(0, min(len(data), 2000), 3):
                broken[at] = rng.integers(0, 256)
            refusal(preproc_rs.prepare_image, bytes(broken), max_pixels=4_000_000)


def test_a_png_without_its_end_chunk_is_whole_if_its_pixels_are():
    interlaced = (MEDIA / "interlaced.png").read_bytes()
    for data in (SAME["png rgb"], SAME["png palette"], interlaced):
        assert data[-8:-4] == b"IEND"
        whole = preproc_rs.prepare_image(data).hash
        for missing in (1, 4, 7, 11, 12):
            assert preproc_rs.prepare_image(data[:-missing]).hash == whole, missing
    # Two image chunks, the second of which is missing.
    data = SAME["png rgb"]
    at = data.index(b"IDAT") - 4
    length = int.from_bytes(data[at : at + 4], "big")
    body = data[at + 8 : at + 8 + length]
    half = b"IDAT" + body[: length // 2]
    cut = data[:at] + (length // 2).to_bytes(4, "big") + half + zlib.crc32(half).to_bytes(4, "big")
    refused = refusal(preproc_rs.prepare_image, cut)
    assert refused is not None and refused.code == "truncated"

"""AVIF and HEIC, in builds with these features: Pillow's pixels, pillow-heif's pixels, and files that lie.

fixtures/preproc/heif: HEIC files written by pillow-heif 1.8.1 (libheif 1.23.6), each with the PNG that it decodes to.
"""

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

import preproc_rs

from . import resize_ref as ref
from .heif_file import Item, box, find, full, grid, size, write
from .paths import ROOT, refusal
from .test_decoders import GRAY, RGB, RGBA, SIZE, ours, pillow, save

avif = pytest.mark.skipif("AVIF" not in preproc_rs.IMAGE_FORMATS, reason="built without avif")
heic = pytest.mark.skipif("HEIC" not in preproc_rs.IMAGE_FORMATS, reason="built without heic")
HEIC = ROOT / "heif"
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8))


def equal_rows(data: bytes, expected: NDArray[np.uint8]) -> bool:
    """Also for sizes that are resized: the rows are those of the expected picture."""
    got = preproc_rs.prepare_image(data)
    assert (got.height, got.width) == expected.shape[:2]
    return np.array_equal(got.patches, ref.byte_rows(ref.resize(expected, *got.resized_hw)))


@avif
@pytest.mark.parametrize("range_", ["full", "limited"])
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:2:2", "4:4:4", "4:0:0"])
@pytest.mark.parametrize("image", [RGB, NOISE, GRAY], ids=["smooth", "noise", "gray"])
def test_avif_pixels_equal_pillow(image: Image.Image, subsampling: str, range_: str) -> None:
    data = save(image, "AVIF", quality=80, speed=10, subsampling=subsampling, range=range_)
    assert np.array_equal(ours(data), pillow(data))


@avif
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
def test_alpha_of_an_avif_is_laid_onto_white(subsampling: str) -> None:
    data = save(RGBA, "AVIF", quality=80, speed=10, subsampling=subsampling)
    assert np.array_equal(ours(data), pillow(data))


@avif
@pytest.mark.parametrize("size_", [(1, 1), (3, 2), (111, 139), (17, 64)])
def test_odd_sizes_equal_pillow(size_: tuple[int, int]) -> None:
    data = save(NOISE.crop((0, 0, *size_)), "AVIF", quality=90, speed=10)
    assert equal_rows(data, pillow(data))


@avif
@pytest.mark.parametrize("value", range(1, 9))
def test_turned_and_mirrored(value: int) -> None:
    """Pillow writes an orientation as the file's own transformations, and reads them back as one."""
    exif = Image.Exif()
    exif[0x0112] = value
    data = save(RGB, "AVIF", exif=exif.tobytes(), speed=10)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(ours(data), expected)


@avif
def test_an_animation_gives_its_first_frame() -> None:
    others = [Image.new("RGB", RGB.size, c) for c in ("red", "green")]
    data = save(RGB, "AVIF", save_all=True, append_images=others, duration=50, speed=10)
    assert np.array_equal(ours(data), pillow(data))


@heic
@pytest.mark.parametrize("name", ["420", "422", "444", "alpha", "gray", "odd"])
def test_heic_pixels_equal_pillow_heif(name: str) -> None:
    assert equal_rows((HEIC / f"{name}.heic").read_bytes(), np.asarray(Image.open(HEIC / f"{name}.png")))


@heic
@pytest.mark.parametrize(("name", "most"), [("limited", 1), ("deep", 3)])
def test_limited_range_and_ten_bits_are_near_pillow_heif(name: str, most: int) -> None:
    """libheif rounds its factors of limited range, and cuts samples to 8 bits before it turns them into RGB."""
    expected = np.asarray(Image.open(HEIC / f"{name}.png")).astype(int)
    assert np.abs(ours((HEIC / f"{name}.heic").read_bytes()) - expected).max() <= most


def tile(image: Image.Image) -> Item:
    data = save(image, "AVIF", quality=80, speed=10)
    return Item(b"av01", find(data, b"mdat"), [size(*image.size), box(b"av1C", find(data, b"av1C"))])


def tiles(rows: int, columns: int, side: int = 112) -> tuple[list[Item], NDArray[np.uint8]]:
    crops = [
        NOISE.resize((112 * columns, 112 * rows)).crop((side * x, side * y, side * (x + 1), side * (y + 1)))
        for y in range(rows)
        for x in range(columns)
    ]
    decoded = [pillow(save(crop, "AVIF", quality=80, speed=10)) for crop in crops]
    together = [np.concatenate(decoded[columns * y : columns * (y + 1)], axis=1) for y in range(rows)]
    return [tile(crop) for crop in crops], np.concatenate(together)


def grid_file(parts: list[Item], rows: int, columns: int, width: int, height: int, **options: object) -> bytes:
    main = Item(b"grid", grid(rows, columns, width, height), [size(width, height)])
    main.refers = {b"dimg": list(range(2, 2 + min(rows * columns, len(parts))))}
    return write([main, *parts], **options)


@avif
@pytest.mark.parametrize(("width", "height"), [(336, 224), (308, 196)])
def test_a_grid_is_put_together_and_its_edge_cut(width: int, height: int) -> None:
    parts, expected = tiles(2, 3)
    data = grid_file(parts, 2, 3, width, height)
    assert np.array_equal(ours(data), expected[:height, :width])


@avif
@pytest.mark.parametrize(
    ("shift", "left", "top"), [((0, 1, 0, 1), 28, 14), ((-28, 1, 14, 1), 0, 28), ((1, 2, -1, 2), 28, 13)]
)
def test_a_clean_aperture_is_cut_out(shift: tuple[int, ...], left: int, top: int) -> None:
    part = tile(RGB)
    aperture = b"".join(v.to_bytes(4, "big", signed=True) for v in (168, 1, 140, 1, *shift))
    part.properties.append(box(b"clap", aperture))
    data = write([part])
    whole = pillow(save(RGB, "AVIF", quality=80, speed=10))
    assert np.array_equal(ours(data), whole[top : top + 140, left : left + 168])


def hostile() -> dict[str, tuple[bytes, str]]:
    one = tile(RGB.resize((112, 112)))
    config = one.properties[1]

    def said(*properties: bytes, data: bytes = one.data, **options: object) -> bytes:
        return write([Item(b"av01", data, list(properties), **options)])

    own = Item(b"grid", grid(1, 1, 112, 112), [size(112, 112)], {b"dimg": [1]})
    small, large = Item(b"av01", b"", one.properties), Item(b"free", bytes(200_000), one.properties)
    return {
        "60000 x 60000": (said(size(60_000, 60_000), config), "too_many_pixels"),
        "2^32 - 1 wide": (said(size(2**32 - 1, 1), config), "bad_dimensions"),
        "0 wide": (said(size(0, 112), config), "bad_dimensions"),
        "one picture of 64 megapixels": (said(size(8_000, 8_000), config), "too_many_pixels"),
        "smaller than coded": (said(size(8, 8), config), "corrupt"),
        "larger than coded": (said(size(4_000, 4_000), config), "corrupt"),
        "no size": (said(config), "corrupt"),
        "no configuration": (said(size(112, 112)), "corrupt"),
        "no picture": (write([one], primary=7), "corrupt"),
        "JPEG inside": (write([Item(b"jpeg", b"", one.properties)]), "unsupported_format"),
        "unknown but essential": (said(size(112, 112), config, box(b"what"), essential=True), "unsupported_format"),
        "data that are none": (said(size(112, 112), config, data=b"\x12\x00" + bytes(60)), "corrupt"),
        "beyond the end": (grid_file([one], 1, 1, 112, 112, place=(1 << 30, 9)), "truncated"),
        "no meta": (box(b"ftyp", b"avif", bytes(4)), "truncated"),
        "a grid of itself": (write([own]), "corrupt"),
        "a grid of grids": (grid_file([own], 1, 1, 112, 112), "unsupported_format"),
        "a grid with too few tiles": (grid_file([one], 2, 2, 224, 224), "corrupt"),
        "a grid with more than it needs": (grid_file([one] * 4, 2, 2, 100, 100), "corrupt"),
        "a grid of 65536": (grid_file([one], 256, 256, 25_000, 3_000), "limit_exceeded"),
        "tiles over each other": (
            grid_file([small] * 256 + [large], 16, 16, 1_792, 1_792, place=(0, 200_000)),
            "limit_exceeded",
        ),
        "an aperture of nothing": (said(size(112, 112), config, box(b"clap", bytes(32))), "corrupt"),
        "an alpha of another size": (
            write(
                [
                    one,
                    Item(
                        b"av01",
                        one.data,
                        [size(56, 56), config, full(b"auxC", b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0")],
                        {b"auxl": [1]},
                    ),
                ]
            ),
            "unsupported_format",
        ),
    }


@avif
def test_hostile_files_are_refused() -> None:
    for name, (data, code) in hostile().items():
        error = refusal(preproc_rs.prepare_image, data)
        assert error is not None, name
        assert error.code == code, (name, error)


def whole_files() -> list[bytes]:
    files = []
    if "AVIF" in preproc_rs.IMAGE_FORMATS:
        files += [save(RGBA, "AVIF", speed=10), grid_file(tiles(2, 2)[0], 2, 2, 224, 224)]
    if "HEIC" in preproc_rs.IMAGE_FORMATS:
        files += [path.read_bytes() for path in sorted(HEIC.glob("*.heic"))]
    return files


@pytest.mark.skipif(not {"AVIF", "HEIC"} & set(preproc_rs.IMAGE_FORMATS), reason="built without avif and heic")
def test_every_cut_is_refused_and_flipped_bytes_are_typed() -> None:
    rng = np.random.default_rng(1)
    for data in whole_files():
        for cut in range(0, len(data) - 1, max(1, len(data) // 60)):
            assert refusal(preproc_rs.prepare_image, data[:cut]), cut
        for _ in range(60):
            broken = bytearray(data)
            for at in rng.integers(0, len(data), 3):
                broken[at] = rng.integers(0, 256)
            refusal(preproc_rs.prepare_image, bytes(broken), max_pixels=4_000_000)

"""The one file of the gateway that calls `preproc_rs` for media: options in, `PreparedMedia` out, errors named.

Everything here is synchronous and runs in the room's threads; the extension releases the GIL while it works.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import preproc_rs
from gateway.media.cache import Entry
from gateway.media.problems import MediaProblem, from_preproc
from gateway.media.settings import MediaSettings
from gateway.media.types import HeldUrl, MediaPart, PreparedMedia, url_bytes

rs: Any = preproc_rs
IMAGE_FORMATS: Final = frozenset({"jpeg", "png", "webp", "gif", "bmp", "tiff", "avif", "heic", "ico"})
VIDEO_FORMATS: Final = frozenset({"mp4", "webm", "mkv", "avi", "mpegts"})
_TAKEN: Final = {
    "image": f"{', '.join(rs.IMAGE_FORMATS[:-1])} or {rs.IMAGE_FORMATS[-1]}",
    "video": "MP4, WebM, Matroska, AVI or MPEG-TS",
}
IMAGE_TYPES: Final = tuple(f"image/{name.lower()}" for name in rs.IMAGE_FORMATS)
"""Media types of the images this build decodes: TIFF, AVIF and HEIC are options of the extension."""
HEAD_BYTES: Final = 4096
"""Enough of a file to know its format."""
LONG_SIDE_MIN: Final = 112
LONG_SIDE_MAX: Final = 3584
LONG_SIDE_STEP: Final = 28
FPS_RANGE: Final = (0.2, 5.0)
_NEUTRAL_TYPES: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_ALIASES: Final = {"jpg": "jpeg", "pjpeg": "jpeg", "x-png": "png", "x-ms-bmp": "bmp", "x-bmp": "bmp", "heif": "heic"}
_PRINTABLE_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+/-]{0,60}")


@dataclass(frozen=True, slots=True)
class Options:
    """What, besides the bytes, decides the rows."""

    modality: str
    rows: str
    apply_exif: bool = True
    size_rule: str = "long_side"
    max_long_side_pixel: int | None = None
    fps: float | None = None
    max_frames: int | None = None

    def image(self) -> dict[str, Any]:
        return {
            "size_rule": self.size_rule,
            "max_long_side_pixel": self.max_long_side_pixel,
            "rows": self.rows,
            "apply_exif": self.apply_exif,
        }

    def video(self) -> dict[str, Any]:
        return {
            "fps": self.fps,
            "max_frames": self.max_frames,
            "max_long_side_pixel": self.max_long_side_pixel,
            "rows": self.rows,
        }


def options_of(part: MediaPart, settings: MediaSettings) -> Options:
    """Raises MediaProblem `invalid_value` for an option outside its range."""
    cap = part.max_long_side_pixel
    if cap is not None and (cap % LONG_SIDE_STEP or not LONG_SIDE_MIN <= cap <= LONG_SIDE_MAX):
        raise _option(
            f"max_long_side_pixel is {cap}; it must be a multiple of {LONG_SIDE_STEP} "
            f"from {LONG_SIDE_MIN} to {LONG_SIDE_MAX}"
        )
    if part.modality == "image":
        low = part.detail == "low"
        return Options(
            "image",
            settings.rows,
            settings.apply_exif,
            size_rule="area" if low else "long_side",
            max_long_side_pixel=None if low else cap,
        )
    if part.fps is not None and not FPS_RANGE[0] <= part.fps <= FPS_RANGE[1]:
        raise _option(f"fps is {part.fps}; it must lie from {FPS_RANGE[0]} to {FPS_RANGE[1]}")
    if part.max_frames is not None and part.max_frames < 1:
        raise _option(f"max_frames is {part.max_frames}; it must be at least 1")
    return Options("video", settings.rows, max_long_side_pixel=cap, fps=part.fps, max_frames=part.max_frames)


def reference_digest(scope: str, reference: str, options: Options) -> bytes:
    """Names (who, what was referred to, how it is to be prepared) without keeping the reference itself."""
    prefix = repr((scope, options, url_bytes(reference))).encode()
    if isinstance(reference, HeldUrl):
        return bytes(rs.digest(prefix, reference.body, reference.start, reference.end))
    return bytes(rs.digest(prefix, reference.encode("utf-8", "surrogatepass")))


def source_key(data: bytes, options: Options) -> str:
    if options.modality == "image":
        return str(rs.source_key(data, **options.image()))
    prefix = repr((rs.PREPROCESS_VERSION, "video", options)).encode()
    return bytes(rs.digest(prefix, data)).hex()


def find_long_values(body: bytes, least: int) -> list[tuple[str, int, int]]:
    """("url" | "text" | "ids", start, end) of the values in a JSON body that are longer than `least` bytes."""
    found: list[tuple[str, int, int]] = rs.find_long_values(body, least)
    return found


def long_text(body: bytes, start: int, end: int) -> bytes:
    """UTF-8 of a "text" or "url"."""
    return bytes(rs.long_text(body, start, end))


def long_ids(body: bytes, start: int, end: int) -> NDArray[np.uint32]:
    """The token ids of an "ids"."""
    return np.frombuffer(rs.long_ids(body, start, end), dtype="<u4")


def join(pieces: list[bytes]) -> bytes:
    return bytes(rs.join(pieces))


def decode_data_url(url: str, max_bytes: int) -> tuple[str, bytes]:
    try:
        if isinstance(url, HeldUrl):
            declared, data = rs.decode_data_url(url.body, max_bytes, url.start, url.end)
        else:
            declared, data = rs.decode_data_url(url, max_bytes)
    except ValueError as error:
        raise from_preproc(error, "the data: URL") from None
    return declared, data


@dataclass(frozen=True, slots=True)
class Looked:
    """What the first bytes say. `pixels` and `tokens` are 0 when only decoding can tell."""

    format: str
    mismatch: bool
    pixels: int
    tokens: int


def check_upload(head: bytes) -> None:
    """Raises MediaProblem when a file that begins with `head` is no image and no video of a known format."""
    if rs.sniff(head) not in IMAGE_FORMATS | VIDEO_FORMATS:
        what = "these bytes are no image or video of a known format" if head else "the file is empty"
        raise MediaProblem("media_unsupported_format", f"{what}; send {_TAKEN['image']}, or {_TAKEN['video']}")


def look(data: bytes, declared: str, options: Options, max_pixels: int) -> Looked:
    """Refuses by magic what the part cannot be, and reads the size from the header."""
    found = rs.sniff(data)
    declared = declared.lower()
    if found not in IMAGE_FORMATS | VIDEO_FORMATS:
        said = f", declared as {declared}" if _PRINTABLE_TYPE.fullmatch(declared) else ""
        message = f"these bytes are no {options.modality} of a known format{said}; send {_TAKEN[options.modality]}"
        raise MediaProblem("media_unsupported_format", message)
    is_image = found in IMAGE_FORMATS
    if is_image != (options.modality == "image"):
        actual = "image" if is_image else "video"
        raise MediaProblem(
            "media_unsupported_format",
            f"this is {found}; {actual}s are sent as {actual}_url or {actual}_file parts",
            reason="modality",
        )
    subtype = declared.rpartition("/")[2]
    mismatch = declared not in _NEUTRAL_TYPES and is_image and _ALIASES.get(subtype, subtype) != found
    pixels = tokens = 0
    if is_image and hasattr(rs, "probe"):
        try:
            _, width, height, tokens = rs.probe(
                data,
                size_rule=options.size_rule,
                max_long_side_pixel=options.max_long_side_pixel,
                apply_exif=options.apply_exif,
                max_pixels=max_pixels,
            )
        except ValueError as error:
            raise from_preproc(error, "the image") from None
        pixels = width * height
    return Looked(found, mismatch, pixels, tokens)


def new_token() -> Any:
    return rs.CancelToken()


def prepare_image(data: bytes, options: Options, settings: MediaSettings, token: Any) -> Entry:
    began = time.perf_counter()
    try:
        prepared = rs.prepare_image(
            data,
            **options.image(),
            max_bytes=settings.max_image_bytes,
            max_pixels=settings.max_image_pixels,
            cancel=token,
        )
    except MemoryError:
        raise MediaProblem("overloaded", "not enough memory to decode the image; try again") from None
    except ValueError as error:
        raise from_preproc(error, "the image") from None
    return entry_of(prepared, len(data), time.perf_counter() - began)


def entry_of(prepared: Any, source_bytes: int, seconds: float) -> Entry:
    """`prepared`: a preproc_rs.Prepared, or what the video worker gives in its stead."""
    patches = prepared.patches
    patches.flags.writeable = False
    media = PreparedMedia(
        modality=prepared.kind,
        hash=prepared.hash,
        grid=tuple(prepared.grid_thw),
        tokens=prepared.tokens,
        rows=prepared.rows,
        t_dup=prepared.t_dup,
        data=memoryview(patches).cast("B"),
        timestamps=None if prepared.timestamps is None else tuple(prepared.timestamps),
        source_bytes=source_bytes,
    )
    frames = 1 if media.modality == "image" else 2 * media.grid[0]
    return Entry(media, source_bytes, prepared.width * prepared.height * frames, seconds)


def _option(message: str) -> MediaProblem:
    return MediaProblem("invalid_value", message, reason="bad_option")

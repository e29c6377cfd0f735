"""Images and videos to MiniMax-M3 patch rows. Every function releases the GIL while it works; all are synchronous.

Errors are PreprocError with a stable `code` from ERROR_CODES and a `message` for the person who sent the file.
"""

from typing import Any, Final, Literal, final

from numpy.typing import NDArray

__version__: Final[str]
PREPROCESS_VERSION: Final[str]
"""Part of every source key; changes whenever the same file and options give other rows."""
BUILD_PROFILE: Final[str]
""""release" or "debug": a benchmark of a debug build is visible."""
ERROR_CODES: Final[tuple[str, ...]]
RESIZE_FORMS: Final[tuple[str, ...]]
"""Instruction sets the resize can use on this CPU, the plainest first; the last is used."""
HAS_VIDEO: Final[bool]
"""Whether this build has libav; without it `prepare_video` raises decoder_disabled."""

IMAGE_FORMATS: Final[tuple[str, ...]]
"""Formats of images that are decoded, as people write them: "JPEG", "PNG", "WebP", "GIF", "BMP", and those of the features
this build has: "TIFF", "AVIF", "HEIC"."""

class PreprocError(ValueError):
    """A refused file or option."""

    code: str
    message: str

@final
class CancelToken:
    """Set from any thread: work that got it stops at its next check with code "cancelled"."""

    def __init__(self) -> None: ...
    def cancel(self) -> None: ...
    @property
    def cancelled(self) -> bool: ...

@final
class Prepared:
    """One prepared image or video. Sizes are of the upright picture, before resizing.

    patches     [t*h*w, 588] (t_dup 1) or [t*h*w, 1176] (t_dup 0), uint8 or float32, C order, read-only, not a copy
    grid_thw    (t, h, w) in patches; tokens = t*h*w/4
    source_key  hex, blake3 of (file, options, PREPROCESS_VERSION): a cache key
    hash        hex, equals engine.wire.item_hash of the rows
    timestamps  videos: seconds of each temporal patch; images: None
    frame_indices  videos: numbers of the frames kept, among presented frames; images: None
    ms          milliseconds per step
    """

    @property
    def kind(self) -> Literal["image", "video"]: ...
    @property
    def format(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def resized_hw(self) -> tuple[int, int]: ...
    @property
    def grid_thw(self) -> tuple[int, int, int]: ...
    @property
    def tokens(self) -> int: ...
    @property
    def rows(self) -> Literal["u8", "f32"]: ...
    @property
    def t_dup(self) -> int: ...
    @property
    def patches(self) -> NDArray[Any]: ...
    @property
    def source_key(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def timestamps(self) -> tuple[float, ...] | None: ...
    @property
    def frame_indices(self) -> tuple[int, ...] | None: ...
    @property
    def ms(self) -> dict[str, float]: ...

def prepare_image(
    data: bytes,
    *,
    size_rule: str = "long_side",
    max_long_side_pixel: int | None = None,
    rows: str = "u8",
    apply_exif: bool = True,
    max_bytes: int = ...,
    max_pixels: int = ...,
    cancel: CancelToken | None = None,
    resize_form: str | None = None,
) -> Prepared:
    """Decodes, resizes and patchifies a JPEG, PNG, WebP, GIF or BMP.

    size_rule            "long_side" (default) or "area" (at most 576 tokens)
    max_long_side_pixel  long-side rule's cap: a multiple of 28 in [112, 3584], default 2016
    rows                 "u8": [n, 588], the engine repeats the frame; "f32": [n, 1176], normalised
    resize_form          for measurements: one of RESIZE_FORMS instead of the last; the rows are the same
    """

def prepare_video(
    data: bytes,
    *,
    fps: float | None = None,
    max_frames: int | None = None,
    max_long_side_pixel: int | None = None,
    rows: str = "u8",
    max_bytes: int = ...,
    max_volume: int = ...,
    deadline_s: float = 20.0,
    threads: int = 1,
    exhaustive: bool = False,
    cancel: CancelToken | None = None,
) -> Prepared:
    """Samples, decodes, resizes and patchifies an MP4, WebM, Matroska, MPEG-TS or AVI file.

    fps                  frames kept a second, 1 by default, in [0.2, 5]; the last frame is always kept
    max_frames           at most so many, evenly thinned
    max_long_side_pixel  None: the area rule with 602,112 pixels a frame; else the long-side rule
    max_volume           width * height * frames after resizing; frames are thinned to fit (default 100,352,000)

    exhaustive           decode every frame, also those nothing needs: same rows, for checks and measurements

    A crash of a codec would end the process: gateway.media.video_worker runs this in one of its own."""

def source_key(
    data: bytes,
    *,
    size_rule: str = "long_side",
    max_long_side_pixel: int | None = None,
    rows: str = "u8",
    apply_exif: bool = True,
) -> str:
    """The `source_key` that `prepare_image` would give, without decoding."""

def probe(
    data: bytes,
    *,
    size_rule: str = "long_side",
    max_long_side_pixel: int | None = None,
    apply_exif: bool = True,
    max_bytes: int = ...,
    max_pixels: int = ...,
) -> tuple[str, int, int, int]:
    """(format, width, height, tokens) by the header alone: upright size, and the tokens the image would take.

    Decodes no pixel; refuses, with the same codes, what `prepare_image` refuses by header."""

def decode_data_url(url: str | bytes, max_bytes: int, start: int = 0, end: int | None = None) -> tuple[str, bytes]:
    """(declared media type or "", bytes) of a base64 data: URL, which is [start, end) of the bytes given (of a str's, its UTF-8).
    Codes: bad_data_url, too_many_bytes; ValueError without one for what is no range."""

def find_long_values(body: bytes, least: int) -> list[tuple[str, int, int]]:
    """(kind, start, end) of the values in a JSON body that are longer than `least` bytes, in order:
    "url": what stands between the quotes of a string that begins with `data:` and has neither escapes nor characters beyond
    ASCII; "text": of any other proper string; "ids": a list of integers from 0 to 2^32 - 1, with its brackets, also a shorter
    one that stands in a list which is longer. Odd values are left out."""

def long_text(body: bytes, start: int, end: int) -> bytes:
    """UTF-8 of the JSON string whose content is [start, end) of the body; ValueError when that is none."""

def long_ids(body: bytes, start: int, end: int) -> bytes:
    """The list of ids that is [start, end) of the body, as u32 little-endian; ValueError when that is none."""

def digest(prefix: bytes, data: bytes, start: int = 0, end: int | None = None) -> bytes:
    """blake3-256 of `prefix` and then [start, end) of `data`; ValueError for what is no range."""

def join(pieces: list[bytes]) -> bytes:
    """b"".join(pieces), copied without the interpreter lock whatever their size."""

def sniff(data: bytes) -> str | None:
    """Format by the first bytes: "jpeg", "png", "webp", "gif", "bmp", "tiff", "avif", "heic", "mp4", "webm", "mkv", "avi",
    "mpegts", "pdf", "svg"; None when unknown."""

def decode_alone(data: bytes) -> None:
    """For measurements: the image decoder alone. A JPEG goes into memory (TurboJPEG), other rows are thrown away."""

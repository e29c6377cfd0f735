"""What the media room takes and gives. Chat code builds `MediaPart`s; `MediaService.prepare` gives `PreparedMedia`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.wire import Modality, Rows

Detail = Literal["auto", "low", "high"]


class HeldUrl(str):
    """A large data: URL that stays where it came: ASCII bytes [start, end) of a request's body. Making text of ten megabytes,
    and bytes again, would each time hold the interpreter, and every stream, for milliseconds. As a str it is a short stand-in
    that also begins with `data:`."""

    body: bytes
    start: int
    end: int
    size: int

    @classmethod
    def of(cls, stand_in: str, body: bytes, start: int, end: int) -> HeldUrl:
        url = cls(stand_in)
        url.body, url.start, url.end, url.size = body, start, end, end - start
        return url

    def release(self) -> None:
        """Lets go of the body: what the URL holds has been decoded."""
        self.body, self.start, self.end = b"", 0, 0


def url_bytes(url: str) -> int:
    """Characters of the URL, as the client sent it."""
    return url.size if isinstance(url, HeldUrl) else len(url)


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One image or video part of a request, in the order the client sent it.

    param   where it stands, for error bodies: "messages[1].content[0]"
    url     data: (also a HeldUrl), http: or https: URL; exactly one of url and file_id is set
    detail  images: "low" is the area rule (at most 576 tokens), "high" and "auto" the long-side rule
    fps, max_frames   videos only
    """

    modality: Modality
    param: str
    url: str | None = None
    file_id: str | None = None
    detail: Detail = "auto"
    max_long_side_pixel: int | None = None
    fps: float | None = None
    max_frames: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedMedia:
    """Decoded, resized and patchified: everything the prompt and the engine item need.

    grid        (t, h, w) in patches; tokens = t*h*w/4
    data        raw rows, C order, dtype `rows`; see engine.wire.Item
    timestamps  seconds of each temporal patch of a video (len t), None for images
    source_bytes  size of the encoded file
    """

    modality: Modality
    hash: str
    grid: tuple[int, int, int]
    tokens: int
    rows: Rows
    t_dup: int
    data: memoryview
    timestamps: tuple[float, ...] | None = None
    source_bytes: int = 0

"""Seeded pictures and clips of realistic size and entropy, as data: URLs."""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

Look = Literal["screenshot", "photo", "document"]


class NoEncoder(RuntimeError):
    """Clips need the ffmpeg command."""


def picture(seed: int, width: int, height: int, look: Look, file_format: str) -> bytes:
    rng = np.random.default_rng([seed, width, height])
    image = {"screenshot": _screenshot, "photo": _photo, "document": _document}[look](rng, width, height)
    out = io.BytesIO()
    options = {"jpeg": {"quality": 88}, "webp": {"quality": 80}, "png": {"compress_level": 4}}[file_format]
    image.save(out, file_format.upper(), **options)
    return out.getvalue()


def _screenshot(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Flat windows, menus and lines of small text: large areas of one colour, sharp edges."""
    image = Image.new("RGB", (width, height), tuple(int(v) for v in rng.integers(200, 256, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(4, 10))):
        x, y = int(rng.integers(0, width * 3 // 4 + 1)), int(rng.integers(0, height * 3 // 4 + 1))
        w, h = int(rng.integers(width // 8 + 1, width // 2 + 2)), int(rng.integers(height // 8 + 1, height // 2 + 2))
        draw.rectangle([x, y, x + w, y + h], fill=tuple(int(v) for v in rng.integers(30, 256, 3)), outline=(90, 90, 90))
        for line in range(y + 6, min(y + h - 10, height), 14):
            text = "".join(chr(int(c)) for c in rng.integers(33, 123, max(1, min(60, w // 7))))
            draw.text((x + 4, line), text, fill=(20, 20, 20))
    return image


def _photo(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Smooth shades with fine noise, as a camera gives."""
    coarse = rng.integers(0, 256, (max(2, height // 64), max(2, width // 64), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noise = rng.normal(0, 6, (height, width, 1)).astype(np.int16)
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def _document(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """A scanned page: dark lines of text on paper that is not quite white."""
    paper = rng.normal(246, 2, (height, width)).astype(np.int16)
    image = Image.fromarray(np.clip(paper, 0, 255).astype(np.uint8)).convert("RGB")
    draw = ImageDraw.Draw(image)
    for y in range(height // 12, height * 11 // 12, 18):
        text = "".join(chr(int(c)) for c in rng.integers(97, 123, max(1, width // 8)))
        draw.text((width // 10, y), text, fill=(25, 25, 30))
    return image


def clip(seed: int, width: int, height: int, seconds: float, fps: int = 30) -> bytes:
    """A moving test pattern as H.264 in mp4. Raises NoEncoder when there is no ffmpeg."""
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise NoEncoder("video scenarios need the ffmpeg command; install it, or choose a scenario without videos")
    source = f"testsrc2=size={width}x{height}:rate={fps}:duration={seconds},hue=h={seed % 360}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        command = [ffmpeg, "-v", "error", "-f", "lavfi", "-i", source, "-pix_fmt", "yuv420p", "-y", str(path)]
        subprocess.run(command, check=True)
        return path.read_bytes()


def data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"

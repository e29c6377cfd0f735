"""The files `catalejo bench preprocess` measures: made here, the same on every run. Needs Pillow; the video, ffmpeg."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def photo(height: int, width: int) -> NDArray[np.uint8]:
    """Smooth colours, soft structure, some grain: as hard to decode as a photograph (12 MP: about 2.5 MB at quality 75)."""
    from PIL import Image

    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    waves = (
        128 + 100 * np.sin(x / 97 + y / 211),
        128 + 90 * np.sin(y / 73 - x / 301),
        128 + 80 * np.cos((x + y) / 151),
    )
    soft = (rng.normal(0, 1, (height // 4 + 1, width // 4 + 1, 3)) * 30 + 128).clip(0, 255).astype(np.uint8)
    structure = np.asarray(Image.fromarray(soft).resize((width, height), Image.Resampling.BICUBIC), np.float32) - 128
    grain = rng.normal(0, 4, (height, width, 1)).astype(np.float32)
    return (np.stack(waves, -1) + structure + grain).clip(0, 255).astype(np.uint8)


def _saved(pixels: NDArray[np.uint8], format_: str, **options: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format_, **options)
    return out.getvalue()


def tiny() -> bytes:
    return _saved(photo(56, 56), "PNG")


def images() -> dict[str, bytes]:
    large, full_hd = photo(3000, 4000), photo(1080, 1920)
    return {
        "12 MP JPEG": _saved(large, "JPEG", quality=75),
        "1080p JPEG": _saved(full_hd, "JPEG", quality=75),
        "1080p PNG": _saved(full_hd, "PNG"),
        "1080p WebP": _saved(full_hd, "WEBP", quality=80),
    }


def video() -> bytes | None:
    """20 s of 1280 x 720 H.264 at 30 frames a second with B-frames; None without the ffmpeg program."""
    program = shutil.which("ffmpeg")
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v.mp4"
        source = "testsrc2=size=1280x720:rate=30:duration=20,noise=alls=12:allf=t"
        command = [program, "-loglevel", "error", "-f", "lavfi", "-i", source, "-c:v", "libx264", "-preset", "veryfast"]
        command += ["-crf", "30", "-pix_fmt", "yuv420p", str(path)]
        if subprocess.run(command, check=False).returncode != 0:
            return None
        return path.read_bytes()

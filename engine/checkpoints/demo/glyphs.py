"""Glyph atlas for the renderer: 62 characters in eight fonts, drawn with Pillow.

Only the training needs it; no font file or glyph is shipped with the project.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .scenes import GLYPHS

DEJAVU = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansCondensed",
)
SIZE, CELL, PEN = 32, 48, (8, 4)


def fonts(folder: Path) -> list[ImageFont.FreeTypeFont]:
    out = [ImageFont.truetype(str(folder / f"{n}.ttf"), SIZE) for n in DEJAVU]
    last = ImageFont.load_default(SIZE)
    assert isinstance(last, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return [*out, last]


def build(folder: Path, out: Path) -> None:
    atlas, advance = [], []
    for f in fonts(folder):
        for ch in GLYPHS:
            im = Image.new("L", (CELL, CELL))
            ImageDraw.Draw(im).text(PEN, ch, font=f, fill=255)
            atlas.append(np.asarray(im))
            advance.append(f.getlength(ch) / SIZE)
    np.savez_compressed(out, atlas=np.stack(atlas), advance=np.array(advance, np.float32).reshape(-1, len(GLYPHS)))


if __name__ == "__main__":
    import sys

    build(
        Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/fonts/truetype/dejavu"),
        Path(sys.argv[2] if len(sys.argv) > 2 else "glyphs.npz"),
    )

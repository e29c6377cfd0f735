"""Draw sample.png, the picture of the quick start: python -m engine.checkpoints.demo.make_sample OUT.png"""

from __future__ import annotations

import sys

from PIL import Image, ImageDraw


def draw() -> Image.Image:
    """A red circle on the left, a blue square on the right, white background, 224 x 112."""
    picture = Image.new("RGB", (224, 112), "white")
    pen = ImageDraw.Draw(picture)
    pen.ellipse((24, 24, 88, 88), fill=(255, 0, 0))
    pen.rectangle((140, 28, 196, 84), fill=(0, 0, 255))
    return picture


if __name__ == "__main__":
    draw().save(sys.argv[1], optimize=True)

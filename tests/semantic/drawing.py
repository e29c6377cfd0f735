"""Pictures with a known content, drawn by Pillow: another program than the one the model was trained with."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "orange": (255, 165, 0),
    "purple": (128, 0, 128),
    "black": (0, 0, 0),
    "pink": (255, 105, 180),
}
SHAPES = ("circle", "square", "triangle", "star")


@dataclass(frozen=True)
class Item:
    colour: str
    shape: str
    x: float = 0.5
    y: float = 0.5
    r: float = 0.28

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


def corners(x: float, y: float, r: float, points: int, inner: float = 1.0) -> list[tuple[float, float]]:
    out = []
    for i in range(points * (2 if inner < 1 else 1)):
        a = math.radians(-90 + 360 * i / (points * (2 if inner < 1 else 1)))
        k = r * (inner if inner < 1 and i % 2 else 1)
        out.append((x + k * math.cos(a), y + k * math.sin(a)))
    return out


def draw(
    *items: Item, size: tuple[int, int] = (160, 160), background: object = "white", mode: str = "RGB"
) -> Image.Image:
    picture = Image.new(mode, size, background)  # type: ignore[arg-type]
    pen = ImageDraw.Draw(picture)
    for t in items:
        x, y, r = t.x * size[0], t.y * size[1], t.r * min(size)
        fill = COLOURS[t.colour] + ((255,) if mode == "RGBA" else ())
        if t.shape == "circle":
            pen.ellipse((x - r, y - r, x + r, y + r), fill=fill)
        elif t.shape == "square":
            pen.rectangle((x - r, y - r, x + r, y + r), fill=fill)
        else:
            pen.polygon(corners(x, y, r, 3) if t.shape == "triangle" else corners(x, y, r, 5, 0.4), fill=fill)
    return picture


def items(rng: random.Random, n: int) -> list[Item]:
    """n things of different colours and shapes."""
    pairs = zip(rng.sample(sorted(COLOURS), n), rng.sample(SHAPES, n), strict=True)
    return [Item(c, s, r=rng.uniform(0.18, 0.34)) for c, s in pairs]

"""Scenes as numbers: what is drawn, where, in which colour. `render.py` draws them; the task files ask about them.

Coordinates are fractions of width and height, radii are fractions of the shorter side.
"""

# ruff: noqa: E501
from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import numpy as np

from .words import COLOUR_NAMES, COLOURS, READ, SHAPE_NAMES, SHAPES

OBJECT_WIDTH = 18  # floats per object row, see Thing.row
GLYPHS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FONTS = 8
MAX_CHARS = 8
COLS, ROWS = ("left", "", "right"), ("top", "", "bottom")
RGB = tuple[float, float, float]


@dataclass
class Thing:
    shape: str
    colour: str
    cx: float
    cy: float
    r: float
    rgb: RGB = (0, 0, 0)
    ratio: float = 1.0  # width / height
    rot: float = 0.0  # radians
    outline: float = 0.0  # stroke width as a fraction of r, 0 = filled
    present: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    def row(self) -> list[float]:
        n, inner, base, _, kind = SHAPES[self.shape]
        k = math.sqrt(self.ratio)
        rx, ry = self.r * k, self.r / k
        if self.ratio > 1.3 or self.ratio < 0.77:  # long shapes: r is the longer half side
            rx, ry = (self.r, self.r / self.ratio) if self.ratio > 1 else (self.r * self.ratio, self.r)
        ri = inner if inner is not None else math.cos(math.pi / n)
        return [self.cx, self.cy, rx, ry, self.rot, n, ri, math.radians(base), kind, self.outline * min(rx, ry),
                *(c / 255 for c in self.rgb), self.present, SHAPE_NAMES.index(self.shape), COLOUR_NAMES.index(self.colour), 0, 0]  # fmt: skip


@dataclass
class Text:
    text: str
    cx: float
    cy: float
    size: float  # font size as a fraction of the shorter side
    font: int
    rgb: RGB


@dataclass
class Scene:
    things: list[Thing] = field(default_factory=list)
    text: Text | None = None
    background: str = "white"
    bg: RGB = (255, 255, 255)
    bg2: RGB = (255, 255, 255)
    angle: float = 0.0
    noise: float = 0.0
    soft: float = 1.0  # edge width in pixels

    def bg_row(self) -> list[float]:
        return [*(c / 255 for c in self.bg), *(c / 255 for c in self.bg2), self.angle, self.noise / 255, self.soft]


def tint(rng: random.Random, name: str, by: int = 8) -> RGB:
    r, g, b = (min(255, max(0, c + rng.randint(-by, by))) for c in rng.choice(COLOURS[name]))
    return (r, g, b)


def far(a: RGB, b: RGB) -> float:
    return math.dist(a, b)


def background(rng: random.Random) -> Scene:
    s = Scene()
    k = rng.random()
    if k < 0.55:
        s.background = "white"
        s.bg = (255, 255, 255) if rng.random() < 0.8 else tint(rng, "white", 6)
    elif k < 0.68:
        s.background = "black"
        s.bg = (0, 0, 0) if rng.random() < 0.6 else tint(rng, "black", 6)
    else:
        s.background = rng.choice(COLOUR_NAMES)
        s.bg = tint(rng, s.background)
    s.bg2 = s.bg
    if rng.random() < 0.12:
        v = rng.randint(-25, 25)
        s.bg2 = tuple(min(255, max(0, c + v)) for c in s.bg)  # type: ignore[assignment]
    s.angle = rng.uniform(0, 2 * math.pi)
    s.noise = 0.0 if rng.random() < 0.6 else rng.uniform(0.5, 9)
    s.soft = rng.choice((0.05, 0.05, 1.0, 1.0, 1.5, 2.5))
    return s


def thing(
    rng: random.Random,
    scene: Scene,
    cx: float,
    cy: float,
    r: float,
    shape: str | None = None,
    colour: str | None = None,
) -> Thing:
    shape = shape or rng.choice(SHAPE_NAMES)
    for _ in range(50):
        c = colour or rng.choice(COLOUR_NAMES)
        rgb = tint(rng, c)
        if c != scene.background and far(rgb, scene.bg) > 70 and far(rgb, scene.bg2) > 70:
            break
    lo, hi = SHAPES[shape][3]
    ratio = rng.uniform(lo, hi)
    if shape in ("rectangle", "ellipse") and rng.random() < 0.4:
        ratio = 1 / ratio
    rot = 0.0
    if rng.random() < 0.35:
        rot = math.radians(rng.uniform(-12, 12))
    elif shape in ("star", "hexagon", "circle") and rng.random() < 0.4:
        rot = rng.uniform(0, 2 * math.pi)
    out = rng.uniform(0.12, 0.3) if rng.random() < 0.08 and r > 0.1 else 0.0
    if shape in ("square", "cross"):
        r *= 1.15 if shape == "square" else 1.0
    return Thing(shape, c, cx, cy, r, rgb, ratio, rot, out)


def spot(rng: random.Random, col: int, row: int, spread: float = 0.08) -> tuple[float, float]:
    return tuple((0.2, 0.5, 0.8)[i] + rng.uniform(-spread, spread) for i in (col, row))  # type: ignore[return-value]


def cell(t: Thing) -> tuple[int, int]:
    return (0 if t.cx < 0.36 else 2 if t.cx > 0.64 else 1), (0 if t.cy < 0.36 else 2 if t.cy > 0.64 else 1)


def place(t: Thing) -> str:
    c, r = cell(t)
    if (c, r) == (1, 1):
        return "in the centre"
    if c == 1:
        return f"at the {ROWS[r]}"
    if r == 1:
        return f"on the {COLS[c]}"
    return f"at the {ROWS[r]} {COLS[c]}"


def distinct(rng: random.Random, make, used: set[str], key=lambda t: t.name):  # type: ignore[no-untyped-def]
    for _ in range(30):
        t = make()
        if key(t) not in used:
            break
    used.add(key(t))
    return t


def sample_things(rng: random.Random, n: int, repeat: bool = False, shape: str | None = None) -> Scene:
    s = background(rng)
    if n == 0:
        return s
    if n == 1:
        if rng.random() < 0.45:
            j = rng.choice((0.0, 0.0, 0.04))
            cx, cy, r = 0.5 + rng.uniform(-j, j), 0.5 + rng.uniform(-j, j), rng.uniform(0.14, 0.42)
        else:
            (cx, cy), r = spot(rng, rng.randrange(3), rng.randrange(3)), rng.uniform(0.08, 0.17)
        s.things = [thing(rng, s, cx, cy, r, shape)]
        return s
    used: set[str] = set()
    if n == 2 and rng.random() < 0.75:
        d = rng.uniform(0.2, 0.32)
        j = rng.choice((0.0, 0.02, 0.08))
        at = [(0.5 - d, 0.5 + rng.uniform(-j, j)), (0.5 + d, 0.5 + rng.uniform(-j, j))]
        if rng.random() < 0.4:
            at = [(y, x) for x, y in at]
        rs = [rng.uniform(0.08, min(0.24, d - 0.02)) for _ in at]
    elif n <= 5 and rng.random() < 0.35:  # a row
        at = [((i + 0.5) / n, 0.5 + rng.uniform(-0.1, 0.1)) for i in range(n)]
        if rng.random() < 0.25:
            at = [(y, x) for x, y in at]
        rs = [rng.uniform(0.25, 0.4) / n for _ in at]
    else:
        cells = rng.sample([(c, r) for c in range(3) for r in range(3)], n)
        at = [spot(rng, c, r, 0.06) for c, r in cells]
        rs = [rng.uniform(0.06, 0.125) for _ in at]
    pool_s = rng.sample(SHAPE_NAMES, 2) if repeat else list(SHAPE_NAMES)
    for (cx, cy), r in zip(at, rs, strict=True):
        make = lambda cx=cx, cy=cy, r=r: thing(rng, s, cx, cy, r, shape or rng.choice(pool_s))  # noqa: E731
        s.things.append(make() if repeat else distinct(rng, make, used))
    return s


def sample_text(rng: random.Random, with_thing: bool = False) -> Scene:
    s = background(rng)
    k = rng.random()
    if k < 0.25:
        t = str(rng.randint(0, 9))
    elif k < 0.45:
        t = str(rng.randint(10, rng.choice((99, 999, 9999))))
    elif k < 0.85:
        t = rng.choice(READ)
        t = rng.choice((t, t.upper(), t.upper(), t.title()))
    else:
        t = "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(1, 5)))
    size = min(rng.uniform(0.25, 0.75), 1.25 / max(1, len(t)))
    cy = rng.uniform(0.3, 0.7)
    if with_thing:
        size = min(size, 0.33)
        top = rng.random() < 0.5
        cy = 0.72 if top else 0.25
        s.things = [thing(rng, s, rng.uniform(0.3, 0.7), 0.27 if top else 0.73, rng.uniform(0.1, 0.17))]
    for _ in range(50):
        c = rng.choice(("black", "white", "black", "white", rng.choice(COLOUR_NAMES)))
        rgb = tint(rng, c, 4)
        if far(rgb, s.bg) > 130:
            break
    s.text = Text(t, 0.5 + rng.uniform(-0.08, 0.08), cy, size, rng.randrange(FONTS), rgb)
    return s


def scene_rows(scenes: list[Scene], advance: np.ndarray, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Arrays for the renderer: things [N,K,18], bg [N,9], chars [N,C,8] or C = 0. advance [FONTS, GLYPHS] in em."""
    h, w = size
    m = min(h, w)
    k = max(1, max(len(s.things) for s in scenes))
    things = np.zeros((len(scenes), k, OBJECT_WIDTH), np.float32)
    things[:, :, 2:4], things[:, :, 5], things[:, :, 6] = 0.1, 4, 0.5
    c = max((len(s.text.text) if s.text else 0) for s in scenes)
    chars = np.zeros((len(scenes), c, 8), np.float32)
    for i, s in enumerate(scenes):
        for j, t in enumerate(s.things):
            things[i, j] = t.row()
        if s.text:
            px = s.text.size * m
            ids = [GLYPHS.index(ch) for ch in s.text.text]
            adv = [float(advance[s.text.font, g]) * px for g in ids]
            px_fit = min(1.0, 0.96 * w / max(1e-6, sum(adv)))
            px, adv = px * px_fit, [a * px_fit for a in adv]
            x = min(max(s.text.cx * w - sum(adv) / 2, 0.01 * w), 0.99 * w - sum(adv))
            y = s.text.cy * h - px * 0.6
            for j, g in enumerate(ids):
                chars[i, j] = [s.text.font * len(GLYPHS) + g, x, y, px, *(v / 255 for v in s.text.rgb), 1]
                x += adv[j]
    return {"things": things, "bg": np.array([s.bg_row() for s in scenes], np.float32), "chars": chars}


def moved(t: Thing, **change) -> Thing:  # type: ignore[no-untyped-def]
    return replace(t, **change)

"""The two image size rules of MiniMax-M3's public stacks (sides in pixels, factor 28)."""

from __future__ import annotations

import math
import random


def area_rule(h: int, w: int, lo: int = 3136, hi: int = 451_584) -> tuple[int, int]:
    a, b = max(round(h / 28), 0) * 28, max(round(w / 28), 0) * 28
    if a * b > hi:
        k = math.sqrt(h * w / hi)
        return max(28, math.floor(h / k / 28) * 28), max(28, math.floor(w / k / 28) * 28)
    if a * b < lo:
        k = math.sqrt(lo / (h * w))
        return math.ceil(h * k / 28) * 28, math.ceil(w * k / 28) * 28
    return a, b


def long_side_rule(h: int, w: int, cap: int = 2016) -> tuple[int, int]:
    long, short = max(h, w), min(h, w)
    k = cap / long if long > cap else min(112 / short, cap / long) if short < 112 else 1.0
    return max(28, round(h * k / 28) * 28), max(28, round(w * k / 28) * 28)


COMMON = (64, 96, 100, 112, 112, 128, 128, 150, 160, 168, 200, 200, 224, 224, 256, 300, 320)
ASPECTS = (1, 1, 1, 1, 4 / 3, 3 / 4, 3 / 2, 2 / 3, 16 / 9, 2, 1 / 2)


def sample_size(rng: random.Random, largest: int = 680) -> tuple[tuple[int, int], tuple[int, int]]:
    """A natural size (h, w) and the grid of patches (gh, gw) that preprocessing makes of it."""
    k = rng.random()
    if k < 0.58:
        base: float = rng.choice(COMMON)
    elif k < 0.88 or largest < 400:
        base = math.exp(rng.uniform(math.log(64), math.log(min(largest, 340))))
    else:
        base = rng.choice((400, 448, 480, 500, 512, 600, 640, rng.uniform(340, largest)))
    a = rng.choice(ASPECTS) if rng.random() < 0.8 else math.exp(rng.uniform(-0.7, 0.7))
    h, w = max(48, round(base / math.sqrt(a))), max(48, round(base * math.sqrt(a)))
    if largest < 400:
        h, w = min(h, largest), min(w, largest)
    th, tw = (long_side_rule if rng.random() < 0.6 else area_rule)(h, w)
    return (h, w), (th // 14, tw // 14)

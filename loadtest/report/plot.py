"""Small SVG plots, no scripts, no fonts, no network: enough for a report that opens anywhere for ever."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape

import numpy as np

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 260, 64, 16, 28, 40
Series = tuple[str, Sequence[float], Sequence[float]]
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that span [low, high]."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10 ** np.floor(np.log10(raw))
    step = float(min((m for m in (1, 2, 2.5, 5, 10) if m * power >= raw), default=10) * power)
    first = np.ceil(low / step) * step
    return [float(v) for v in np.arange(first, high + step * 1e-9, step)]


def _labels(values: list[float]) -> list[str]:
    """With as many decimals as tell neighbours apart."""
    step = min((b - a for a, b in itertools.pairwise(values)), default=1.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    if any(round(v, digits) != round(v, digits + 1) for v in values):
        digits += 1
    return [f"{v:,.{digits}f}" for v in values]


def plot(title: str, x_label: str, y_label: str, series: Sequence[Series], *, points: bool = False) -> str:
    xs = np.concatenate([np.asarray(s[1], dtype=float) for s in series]) if series else np.zeros(0)
    ys = np.concatenate([np.asarray(s[2], dtype=float) for s in series]) if series else np.zeros(0)
    if not xs.size:
        return f"<figure><figcaption>{escape(title)}: no data</figcaption></figure>"
    x0, x1 = float(xs.min()), float(xs.max())
    y0, y1 = min(0.0, float(ys.min())), float(ys.max()) or 1.0
    x1, y1 = (x1 if x1 > x0 else x0 + 1), (y1 if y1 > y0 else y0 + 1)

    def px(x: float) -> float:
        return LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    out.append(f'<text x="{WIDTH / 2}" y="16" class="title">{escape(title)}</text>')
    y_ticks, x_ticks = ticks(y0, y1), ticks(x0, x1)
    for y, label in zip(y_ticks, _labels(y_ticks), strict=True):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>')
        out.append(f'<text class="y" x="{LEFT - 6}" y="{py(y) + 4:.1f}">{label}</text>')
    for x, label in zip(x_ticks, _labels(x_ticks), strict=True):
        out.append(f'<text class="x" x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 16}">{label}</text>')
    out.append(f'<text class="x" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}">{escape(x_label)}</text>')
    out.append(f'<text class="x" transform="translate(12 {HEIGHT / 2}) rotate(-90)">{escape(y_label)}</text>')
    for i, (name, sx, sy) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        if points:
            out += [
                f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="2" fill="{colour}"/>'
                for x, y in zip(sx, sy, strict=True)
            ]
        else:
            path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in zip(sx, sy, strict=True))
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(series) > 1:
            out.append(f'<text x="{LEFT + 8}" y="{TOP + 14 + 14 * i}" fill="{colour}">{escape(name)}</text>')
    out.append("</svg>")
    return "<figure>" + "".join(out) + "</figure>"


def cumulative(values: Sequence[float], most_points: int = 400) -> tuple[list[float], list[float]]:
    """(value, share of values at or below it), thinned."""
    array = np.sort(np.asarray(values, dtype=float))
    share = np.arange(1, array.size + 1) / array.size * 100
    keep = np.unique(np.linspace(0, max(0, array.size - 1), min(most_points, array.size)).astype(np.int64))
    return [float(v) for v in array[keep]], [float(v) for v in share[keep]]

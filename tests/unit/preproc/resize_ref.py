"""The reference image path in plain numpy, integers only in the resize: what preproc_rs must equal, bit for bit.

Horizontal pass, clamp to bytes, vertical pass, clamp to bytes; bicubic a = -0.5 with antialiasing; weights are int16
with the largest shift for which the greatest still fits. This reproduces torchvision's uint8 path.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


def cubic(x: float, a: float = -0.5) -> float:
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    if x < 2:
        return (((x - 5) * x + 8) * x - 4) * a
    return 0.0


def taps(n_in: int, n_out: int) -> tuple[list[tuple[int, NDArray[np.int64]]], int]:
    """([(first input, weights)] per output, shift)."""
    scale = n_in / n_out
    support, inverse = (2.0 * scale, 1.0 / scale) if scale >= 1 else (2.0, 1.0)
    rows: list[tuple[int, list[float]]] = []
    top = 0.0
    for i in range(n_out):
        centre = scale * (i + 0.5)
        low = max(int(centre - support + 0.5), 0)
        n = min(int(centre + support + 0.5), n_in) - low
        weights = [cubic((j + low - centre + 0.5) * inverse) for j in range(n)]
        total = 0.0
        for w in weights:  # not sum(): Python 3.12 compensates
            total += w
        weights = [w / total for w in weights]
        top = max(top, *weights)
        rows.append((low, weights))
    bits = 0
    while bits < 22 and int(0.5 + top * (1 << (bits + 1))) < (1 << 15):
        bits += 1
    whole = [
        (low, np.array([int(v * (1 << bits) + (0.5 if v >= 0 else -0.5)) for v in w], np.int64)) for low, w in rows
    ]
    return whole, bits


def pass_w(a: Bytes, n_out: int) -> Bytes:
    """[H, W, C] -> [H, n_out, C]."""
    filters, bits = taps(a.shape[1], n_out)
    out = np.empty((a.shape[0], n_out, a.shape[2]), np.uint8)
    x = a.astype(np.int64)
    for i, (low, w) in enumerate(filters):
        acc = (x[:, low : low + len(w)] * w[None, :, None]).sum(1) + (1 << (bits - 1))
        out[:, i] = np.clip(acc >> bits, 0, 255)
    return out


def resize(a: Bytes, height: int, width: int) -> Bytes:
    if a.shape[1] != width:
        a = pass_w(a, width)
    if a.shape[0] != height:
        a = pass_w(a.transpose(1, 0, 2), height).transpose(1, 0, 2)
    return np.ascontiguousarray(a)


def byte_rows(a: Bytes, p: int = 14, m: int = 2) -> Bytes:
    """[H, W, 3] -> [H*W/196, 588], order (channel, y, x) in a row, 2x2 blocks of patches."""
    gh, gw = a.shape[0] // p, a.shape[1] // p
    x = a.transpose(2, 0, 1).reshape(3, gh // m, m, p, gw // m, m, p).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.ascontiguousarray(x.reshape(gh * gw, 3 * p * p))


def float_rows(a: Bytes) -> NDArray[np.float32]:
    """[H, W, 3] -> [H*W/196, 1176], order (channel, time, y, x), the still image in both time slots."""
    mu, sd = MEAN * np.float32(255.0), STD * np.float32(255.0)
    x = byte_rows(a).reshape(-1, 3, 1, 196).astype(np.float32)
    x = (x - mu[:, None, None]) / sd[:, None, None]
    return np.repeat(x, 2, axis=2).reshape(-1, 1176)


def formula(h: int, w: int) -> Bytes:
    """The picture of the golden vectors: (7x + 13y + 29c + (x*y)//5) mod 256."""
    y, x, c = np.meshgrid(np.arange(h), np.arange(w), np.arange(3), indexing="ij")
    return ((7 * x + 13 * y + 29 * c + (x * y) // 5) % 256).astype(np.uint8)


def png(a: Bytes, level: int = 1) -> bytes:
    """[H, W], [H, W, 3] or [H, W, 4] as a PNG."""
    colour = {2: 0, 3: 2}[a.ndim] if a.ndim == 2 or a.shape[2] == 3 else 6
    h, w = a.shape[:2]
    raw = b"".join(b"\0" + row.tobytes() for row in a)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", w, h, 8, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, level)) + chunk(b"IEND", b"")
    )


def picture(patches: NDArray[np.uint8], grid: tuple[int, int, int], p: int = 14, m: int = 2) -> Bytes:
    """[n, 588] byte rows of one frame back to [H, W, 3]."""
    _, gh, gw = grid
    x = patches.reshape(gh // m, gw // m, m, m, 3, p, p).transpose(4, 0, 2, 5, 1, 3, 6)
    return np.ascontiguousarray(x.reshape(3, gh * p, gw * p).transpose(1, 2, 0))

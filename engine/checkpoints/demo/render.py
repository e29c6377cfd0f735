# ruff: noqa: E501  (the quantisation table)
"""Draw scenes with torch, resize them exactly as the reference preprocessing does in form, and label what each token sees.

All functions run on CPU and GPU and are fully batched: N pictures of one natural size (H, W) to one grid (gh, gw).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
ATLAS = 32  # font size of the glyph atlas in pixels; a cell is 48 x 48 with the pen at (8, 4)


def coverage(o: Tensor, x: Tensor, y: Tensor, m: float, w: int, h: int, soft: Tensor) -> Tensor:
    """o [N,18] one object per picture; x [.., W], y [.., H, 1] pixel centres; soft [N,1,1] edge width -> [N,H,W] in 0..1."""
    p = [c.view(-1, 1, 1) for c in o.unbind(-1)]
    cx, cy, rx, ry, rot, n, ri, base, kind, stroke = p[:10]
    dx, dy = (x - cx * w) / m, (y - cy * h) / m
    c, s = torch.cos(rot), torch.sin(rot)
    ux, uy = (dx * c + dy * s) / rx, (dy * c - dx * s) / ry
    step = 2 * math.pi / n
    ang = (torch.atan2(uy, ux) - base) / step
    phi = (ang - ang.round()).abs() * step
    r = torch.sqrt(ux * ux + uy * uy)
    bx, by = ri * torch.cos(step / 2), ri * torch.sin(step / 2)
    px, py = r * torch.cos(phi), r * torch.sin(phi)
    edge = ((bx - 1) * py - by * (px - 1)) / torch.sqrt((bx - 1) ** 2 + by**2)
    ax, ay = ux.abs(), uy.abs()
    plus = torch.maximum(torch.minimum(0.36 - ax, 1 - ay), torch.minimum(1 - ax, 0.36 - ay))
    d = torch.where(kind > 0.5, plus, edge) * torch.minimum(rx, ry) * m
    cov = (d / soft + 0.5).clamp(0, 1)
    hole = ((d - stroke * m) / soft + 0.5).clamp(0, 1)
    return cov * torch.where(stroke > 0, 1 - hole, torch.ones_like(hole)) * p[13]


def glyph(chars: Tensor, atlas: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """chars [N,8] one character per picture, atlas [G,48,48] -> coverage [N,H,W]."""
    g, x0, y0, px = (chars[:, i].view(-1, 1, 1) for i in range(4))
    s = (px / ATLAS).clamp(min=1e-3)
    u, v = (x - x0) / s + 8 - 0.5, (y - y0) / s + 4 - 0.5
    inside = (u > 0) & (u < 46) & (v > 0) & (v < 46)
    u, v = u.clamp(0, 46), v.clamp(0, 46)
    iu, iv = u.floor(), v.floor()
    fu, fv = u - iu, v - iv
    flat = atlas.view(-1)
    at = (g.long() * 48 + iv.long()) * 48 + iu.long()
    a = (
        flat[at] * (1 - fu) * (1 - fv)
        + flat[at + 1] * fu * (1 - fv)
        + flat[at + 48] * (1 - fu) * fv
        + flat[at + 49] * fu * fv
    )
    sharp = s.clamp(min=1.0)
    return torch.where(inside & (px > 0), ((a - 0.5) * sharp + 0.5).clamp(0, 1), torch.zeros_like(a)) * chars[
        :, 7
    ].view(-1, 1, 1)


def dct_matrix(device: torch.device) -> Tensor:
    k = torch.arange(8, device=device).float()
    m = torch.cos(math.pi / 8 * (k[None, :] + 0.5) * k[:, None]) * 0.5
    m[0] *= math.sqrt(0.5)
    return m


QUANT = torch.tensor([16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99]).view(8, 8)  # fmt: skip


YCC = torch.tensor([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
RGB = torch.linalg.inv(YCC)  # once: on a GPU the first inverse must not come from two threads


def jpeg_like(img: Tensor, quality: float) -> Tensor:
    """img [N,3,H,W] in 0..255 -> the same after 8x8 block quantisation in YCbCr."""
    _, _, h, w = img.shape
    ph, pw = -h % 8, -w % 8
    z = F.pad(img, (0, pw, 0, ph), mode="replicate")
    ycc = torch.einsum("ij,njhw->nihw", YCC.to(img.device), z)
    ycc[:, 0] -= 128
    b = ycc.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
    d = dct_matrix(img.device)
    scale = (5000 / quality if quality < 50 else 200 - 2 * quality) / 100
    q = (QUANT.to(img.device) * scale).clamp(min=1)
    f = d @ b @ d.T
    b = d.T @ ((f / q).round() * q) @ d
    ycc = b.transpose(3, 4).flatten(4, 5).flatten(2, 3)
    ycc[:, 0] += 128
    return torch.einsum("ij,njhw->nihw", RGB.to(img.device), ycc)[:, :, :h, :w].clamp(0, 255)


def draw(
    things: Tensor,
    bg: Tensor,
    chars: Tensor,
    atlas: Tensor,
    h: int,
    w: int,
    jpeg: float,
    gen: torch.Generator | None = None,
) -> Tensor:
    """-> [N,3,H,W] float in 0..255, whole numbers."""
    dev = things.device
    x = (torch.arange(w, device=dev) + 0.5).view(1, 1, w)
    y = (torch.arange(h, device=dev) + 0.5).view(1, h, 1)
    m = min(h, w)
    ang = bg[:, 6].view(-1, 1, 1)
    u = ((x / w - 0.5) * torch.cos(ang) + (y / h - 0.5) * torch.sin(ang) + 0.5).clamp(0, 1)[:, None]
    img = bg[:, :3, None, None] * (1 - u) + bg[:, 3:6, None, None] * u
    n, k = things.shape[:2]
    cover = coverage(things.flatten(0, 1), x, y, m, w, h, bg[:, 8].repeat_interleave(k).view(-1, 1, 1)).view(
        n, k, 1, h, w
    )
    for i in range(k):
        img = torch.lerp(img, things[:, i, 10:13, None, None].expand_as(img), cover[:, i].expand_as(img))
    if chars.shape[1]:
        a = glyph(chars.flatten(0, 1), atlas, x, y).view(n, -1, h, w).amax(1, keepdim=True)
        img = torch.lerp(img, chars[:, 0, 4:7, None, None].expand_as(img), a.expand_as(img))
    img = img * 255
    img = img + torch.randn(img.shape, device=dev, generator=gen) * bg[:, 7].view(-1, 1, 1, 1) * 255
    img = img.round().clamp(0, 255)
    return jpeg_like(img, jpeg).round() if jpeg else img


def to_rows(img: Tensor, gh: int, gw: int) -> Tensor:
    """img [N,3,H,W] 0..255 -> normalised patches [N, gh*gw, 588] in merge order, after the bicubic antialias resize on bytes."""
    if img.shape[-2:] != (gh * 14, gw * 14):
        img = (
            F.interpolate(img, (gh * 14, gw * 14), mode="bicubic", antialias=True, align_corners=False)
            .round()
            .clamp(0, 255)
        )
    mean = torch.tensor(MEAN, device=img.device).view(1, 3, 1, 1) * 255
    std = torch.tensor(STD, device=img.device).view(1, 3, 1, 1) * 255
    z = ((img - mean) / std).view(-1, 3, gh // 2, 2, 14, gw // 2, 2, 14)
    return z.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(-1, gh * gw, 588)


def labels(things: Tensor, chars: Tensor, n_glyphs: int, h: int, w: int, gh: int, gw: int) -> dict[str, Tensor]:
    """What each merged token (28 x 28) sees at its centre: shape and colour (-1 = nothing), character, centre offsets [.., 2]."""
    dev = things.device
    ch, cw = gh // 2, gw // 2
    x = ((torch.arange(cw, device=dev) + 0.5) * w / cw).view(1, 1, cw)
    y = ((torch.arange(ch, device=dev) + 0.5) * h / ch).view(1, ch, 1)
    n, k, m = things.shape[0], things.shape[1], min(h, w)
    o = things.flatten(0, 1).clone()
    o[:, 9] = 0  # outlines count as filled
    hit = coverage(o, x, y, m, w, h, torch.full((n * k, 1, 1), 0.05, device=dev)) > 0.5
    col, row, there = (o[:, 0] * cw).long(), (o[:, 1] * ch).long(), o[:, 13] > 0.5
    here = (col.view(-1, 1, 1) == torch.arange(cw, device=dev)) & (
        row.view(-1, 1, 1) == torch.arange(ch, device=dev).view(1, ch, 1)
    )
    here = here & there.view(-1, 1, 1)
    hit = (hit | here).view(n, k, ch, cw)
    top = (hit * torch.arange(1, k + 1, device=dev).view(1, k, 1, 1)).amax(1) - 1  # the thing drawn last, -1 = none
    pick = top.clamp(min=0).flatten(1)[..., None].expand(-1, -1, things.shape[-1])
    mine = things.gather(1, pick).view(n, ch, cw, -1)
    none = top < 0
    shape, colour = (mine[..., i].long().masked_fill(none, -1) for i in (14, 15))
    where, centre = mine[..., :2], here.view(n, k, ch, cw).any(1).float()
    char = torch.full_like(shape, -1)
    if chars.shape[1]:
        c = chars.flatten(0, 1)
        g, x0, y0, px = (c[:, i].view(-1, 1, 1) for i in range(4))
        over = (x > x0) & (x < x0 + px * 0.62) & (y > y0 + px * 0.15) & (y < y0 + px)
        mid = ((x - x0 - px * 0.31).abs() <= w / cw / 2) & ((y - y0 - px * 0.62).abs() <= h / ch / 2)
        char = torch.where((over | mid) & (px > 0), (g % n_glyphs).long(), -1).view(n, -1, ch, cw).amax(1)
    flat = lambda t: t.flatten(1, 2)  # noqa: E731
    return {
        "shape": flat(shape),
        "colour": flat(colour),
        "char": flat(char),
        "where": flat(where),
        "centre": flat(centre),
    }

"""Gated expert activation as one Triton kernel forward and one backward: training is bound by launches and memory passes.

h [N, E, 2I] (gate half, up half), w [N, E] routing weights -> y [N, E, I] = w * swiglu_oai(gate, up).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(
    h, w, y, rows, inner: tl.constexpr, alpha: tl.constexpr, limit: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    r = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    ok = (r[:, None] < rows) & (c[None, :] < inner)
    at = r[:, None] * (2 * inner) + c[None, :]
    g = tl.minimum(tl.load(h + at, mask=ok, other=0.0).to(tl.float32), limit)
    u = tl.minimum(tl.maximum(tl.load(h + at + inner, mask=ok, other=0.0).to(tl.float32), -limit), limit)
    k = tl.load(w + r, mask=r < rows, other=0.0).to(tl.float32)
    a = (u + 1.0) * g / (1.0 + tl.exp(-alpha * g)) * k[:, None]
    tl.store(y + r[:, None] * inner + c[None, :], a.to(y.dtype.element_ty), mask=ok)


@triton.jit
def _backward(
    h,
    w,
    dy,
    dh,
    dw,
    rows,
    inner: tl.constexpr,
    alpha: tl.constexpr,
    limit: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    ok = (r[:, None] < rows) & (c[None, :] < inner)
    at = r[:, None] * (2 * inner) + c[None, :]
    g0 = tl.load(h + at, mask=ok, other=0.0).to(tl.float32)
    u0 = tl.load(h + at + inner, mask=ok, other=0.0).to(tl.float32)
    g = tl.minimum(g0, limit)
    u = tl.minimum(tl.maximum(u0, -limit), limit)
    k = tl.load(w + r, mask=r < rows, other=0.0).to(tl.float32)
    d = tl.load(dy + r[:, None] * inner + c[None, :], mask=ok, other=0.0).to(tl.float32)
    s = 1.0 / (1.0 + tl.exp(-alpha * g))
    tl.store(dw + r, tl.sum(d * (u + 1.0) * g * s, 1), mask=r < rows)
    d = d * k[:, None]
    du = tl.where((u0 > -limit) & (u0 < limit), d * g * s, 0.0)
    dg = tl.where(g0 < limit, d * (u + 1.0) * s * (1.0 + alpha * g * (1.0 - s)), 0.0)
    tl.store(dh + at, dg.to(dh.dtype.element_ty), mask=ok)
    tl.store(dh + at + inner, du.to(dh.dtype.element_ty), mask=ok)


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: Tensor, w: Tensor, alpha: float, limit: float) -> Tensor:  # type: ignore[no-untyped-def]
        inner, rows = h.shape[-1] // 2, h.numel() // h.shape[-1]
        y = torch.empty(*h.shape[:-1], inner, dtype=h.dtype, device=h.device)
        _forward[(triton.cdiv(rows, 8),)](h, w, y, rows, inner, alpha, limit, 8, triton.next_power_of_2(inner))
        ctx.save_for_backward(h, w)
        ctx.act = (alpha, limit)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor):  # type: ignore[no-untyped-def]
        h, w = ctx.saved_tensors
        inner, rows = h.shape[-1] // 2, h.numel() // h.shape[-1]
        dh, dw = torch.empty_like(h), torch.empty(w.shape, dtype=torch.float32, device=h.device)
        _backward[(triton.cdiv(rows, 8),)](
            h, w, dy.contiguous(), dh, dw, rows, inner, *ctx.act, 8, triton.next_power_of_2(inner)
        )
        return dh, dw.to(w.dtype), None, None

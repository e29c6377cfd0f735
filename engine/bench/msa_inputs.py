"""Decode inputs for measurements: `sets` disjoint sets of pages in one pool, fresh random numbers, stale tails of NaN."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.msa.layouts import DecodeShape, PageTable

L2_BYTES = 60 << 20


@dataclass
class DecodeInputs:
    shape: DecodeShape
    tokens: int
    sets: int
    q: Tensor  # [sets, T, Hq, D]
    index_q: Tensor  # [sets, T, G, D]
    k: Tensor  # [P, 128, G, D]
    v: Tensor
    index_k: Tensor  # [P, 128, D]
    tables: list[PageTable]
    lengths: Tensor

    @property
    def index_bytes(self) -> int:
        return self.shape.requests * (self.tokens // 128) * 128 * 128 * self.index_k.element_size()

    @property
    def attend_bytes(self) -> int:
        blocks = min(self.shape.config.topk_blocks, -(-self.tokens // 128))
        return self.shape.rows * self.shape.groups * blocks * 128 * 128 * 2 * self.k.element_size()


def random_pool(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Normal numbers, made in pieces: fp8 has no generator of its own and a pool may be tens of gigabytes."""
    out = torch.empty(*shape, dtype=dtype, device=device)
    flat = out.view(-1)
    for piece in flat.split(1 << 28):
        piece.copy_(torch.randn(piece.shape, device=device, dtype=torch.bfloat16))
    return out


def make_inputs(
    shape: DecodeShape,
    tokens: int,
    device: torch.device,
    *,
    sets: int | None = None,
    seed: int = 0,
    layout: str = "nhd",
) -> DecodeInputs:
    torch.manual_seed(seed)
    blocks = -(-tokens // 128)
    if sets is None:
        per_set = shape.requests * blocks * 128 * 128 * shape.index_dtype.itemsize
        sets = max(1, min(16, -(-4 * L2_BYTES // per_set)))
    pages = sets * shape.requests * blocks
    order = torch.randperm(pages, device=device, dtype=torch.int32).view(sets, shape.requests, blocks)
    if layout == "hnd":  # a (page, group) is contiguous
        k, v = (
            random_pool(pages, shape.groups, 128, 128, dtype=shape.kv_dtype, device=device).transpose(1, 2)
            for _ in "kv"
        )
    else:
        k, v = (random_pool(pages, 128, shape.groups, 128, dtype=shape.kv_dtype, device=device) for _ in "kv")
    index_k = random_pool(pages, 128, 128, dtype=shape.index_dtype, device=device)
    if tokens % 128:
        last = order[:, :, -1].flatten().long()
        nan = torch.tensor(float("nan"), device=device)
        for pool in (k, v, index_k):
            pool[last, tokens % 128 :] = nan.to(pool.dtype)
    rows, heads = shape.rows, shape.groups * shape.heads
    return DecodeInputs(
        shape,
        tokens,
        sets,
        torch.randn(sets, rows, heads, 128, device=device).to(shape.query_dtype),
        torch.randn(sets, rows, shape.groups, 128, device=device).to(shape.query_dtype),
        k,
        v,
        index_k,
        [PageTable(table.contiguous()) for table in order],
        torch.full((shape.requests,), tokens, dtype=torch.int32, device=device),
    )

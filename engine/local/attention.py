"""Paged attention for a packed step, in torch: dense layers and MSA layers, prefill and decode together.

The mathematics is `engine.msa.reference`; the tests hold the two against each other. What is added here:

* one call for all tokens of all requests; single-token segments (decodes) go as one batch, longer ones one by one;
* bounded memory: keys are walked in tiles, queries in slices;
* results that do not hang on the batch. A query should not feel its neighbours, chunk borders or whether keys came from
  a cache, or seeds would not reproduce. So every sum runs over a fixed shape: dense attention merges tiles of TILE keys
  counted from position 0 (online softmax; tiles after the query add exact zeros), sparse attention always sums over
  topk * block keys, and matrix products get at least MIN_ROWS rows (BLAS sums differently below that). On the CPU in
  float32 this leaves equal bits nearly everywhere and differences in the last bit elsewhere.

Letters as in the reference; P is the page pool. `tables` are rows of the page table: int64, block b of the sequence
lives in page tables[b]; entries that are not needed hold any valid page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.local.kernel_rows import KernelRows
from engine.local.kv_storage import LayerPages
from engine.msa.config import MsaConfig
from engine.msa.reference import choose_blocks

TILE = 256
LONG_TILE = 2048
"""Off the CPU, where what costs is the number of launches: a tile of dense attention holds up to this many keys."""
MIN_ROWS = 8
GATHER_FLOATS = 1 << 24
"""Most numbers gathered at once, per tensor: 64 MB in float32."""
SCORE_FLOATS = {"cpu": 1 << 20}
"""Index scores held at once while they are reduced to block maxima: small enough to stay in a CPU's cache. Elsewhere
GATHER_FLOATS: what costs there is the number of launches."""
NEG_INF = float("-inf")


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one sequence in the packed step."""

    rows: slice
    first: int
    """Position of the first one."""
    table: Tensor
    """int64 [blocks]"""

    @property
    def end(self) -> int:
        return self.first + self.rows.stop - self.rows.start


@dataclass(frozen=True, slots=True)
class Batch:
    """How the T tokens of a step lie: the first `decodes` rows are single tokens, segments follow."""

    positions: Tensor
    """int64 [T]"""
    tables: Tensor
    """int64 [decodes, max_blocks]"""
    decodes: int
    longest: int
    """Tokens in the longest of the decoding sequences, the new one included."""
    segments: list[Segment]
    kernel: KernelRows | None = None
    """Given: sparse layers decode through a kernel of engine.msa instead of torch."""


# ------------------------------------------------------------------------------------------------ dense layers
def dense_attention(q: Tensor, layer: LayerPages, batch: Batch) -> Tensor:
    """Causal attention to everything before. q [T, Hq, D] -> [T, Hq, D]."""
    groups = layer.k.shape[1]
    out = torch.empty_like(q)
    n = batch.decodes
    if n:
        grouped = q[:n].float().unflatten(1, (groups, -1))  # [n, G, Hq/G, D]
        merged = _merge_tiles(grouped, layer, batch.tables, batch.positions[:n, None, None, None], batch.longest)
        out[:n] = merged.flatten(1, 2).to(q.dtype)
    for s in batch.segments:
        count = s.rows.stop - s.rows.start
        grouped = q[s.rows].float().unflatten(1, (groups, -1)).permute(1, 0, 2, 3).flatten(1, 2)  # [G, count*Hq/G, D]
        positions = batch.positions[s.rows].repeat_interleave(grouped.shape[1] // count)
        merged = _merge_tiles(grouped[None], layer, s.table[None], positions[None, None, :, None], s.end, s.first + 1)[
            0
        ]
        out[s.rows] = merged.unflatten(1, (count, -1)).permute(1, 0, 2, 3).flatten(1, 2).to(q.dtype)
    return out


def _tile(length: int, device: torch.device) -> int:
    """Keys in a tile of dense attention over `length` keys. On a CPU always TILE, so that sums keep their shape."""
    return TILE if device.type == "cpu" else min(LONG_TILE, -(-length // TILE) * TILE)


def _merge_tiles(
    q: Tensor, layer: LayerPages, tables: Tensor, positions: Tensor, length: int, seen_by_all: int = 0
) -> Tensor:
    """q [R, G, M, D], tables [R, blocks], positions [R, 1, M or 1, 1] -> [R, G, M, D], all float32.

    `seen_by_all`: that many leading keys come before every query, so that tiles within them need no mask."""
    block = layer.k.shape[2]
    blocks_per_tile = max(1, _tile(length, q.device) // block)
    span = blocks_per_tile * block
    q = q / math.sqrt(q.shape[-1])
    best = torch.full((*q.shape[:-1], 1), NEG_INF, device=q.device)
    total = torch.zeros_like(best)
    acc = torch.zeros_like(q)
    ends = positions.amax(-2, keepdim=True)
    offsets = torch.arange(span, device=q.device)
    for start in range(0, length, span):
        ids = tables[:, start // block : start // block + blocks_per_tile]
        ids = F.pad(ids, (0, blocks_per_tile - ids.shape[1]))  # page 0 stands in; its keys are masked
        k, v = (pool[ids].transpose(1, 2).flatten(2, 3).float() for pool in (layer.k, layer.v))  # [R, G, span, D]
        scores = q @ k.transpose(-1, -2)
        if start + span > seen_by_all:
            key = offsets + start
            # Past the end of a sequence lies what an earlier owner of the page left; 0 * NaN would not be 0.
            v = v.masked_fill((key > ends).transpose(-1, -2), 0.0)
            scores.masked_fill_(key > positions, NEG_INF)
        peak = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = scores.sub_(peak).exp_()
        keep = torch.exp(best - peak)
        total = total * keep + weights.sum(-1, keepdim=True)
        acc = acc * keep + weights @ v
        best = peak
    return acc / total


# ------------------------------------------------------------------------------------------------ sparse layers
def sparse_attention(q: Tensor, index_q: Tensor, layer: LayerPages, batch: Batch, config: MsaConfig) -> Tensor:
    """MSA. q [T, Hq, D], index_q [T, G, Di] -> [T, Hq, D]."""
    out = torch.empty_like(q)
    n = batch.decodes
    if n and batch.kernel is not None:
        out[:n] = batch.kernel.decode(q[:n], index_q[:n], layer, config)
    elif n:
        scores = _decode_scores(index_q[:n], layer, batch)
        blocks = choose_blocks(scores, batch.positions[:n], config)
        out[:n] = _attend_blocks(q[:n], layer, batch.tables, blocks, batch.positions[:n])
    for s in batch.segments:
        scores = _segment_scores(index_q[s.rows], layer, s, batch.positions[s.rows])
        blocks = choose_blocks(scores, batch.positions[s.rows], config)[..., : scores.shape[-1]]  # the rest is empty
        table = s.table[None].expand(len(blocks), -1)
        out[s.rows] = _attend_blocks(q[s.rows], layer, table, blocks, batch.positions[s.rows])
    return out


def _block_maxima(products: Tensor, start: int, positions: Tensor, block: int, seen_by_all: int = 0) -> Tensor:
    """products [T, G, keys] of keys start.. -> fp32 [T, G, keys / block], future keys left out. Changes `products`."""
    end = start + products.shape[-1]
    if end > seen_by_all:
        future = torch.arange(start, end, device=products.device) > positions[:, None]
        products.masked_fill_(future[:, None], NEG_INF)
    return products.unflatten(-1, (-1, block)).amax(-1)


def _decode_scores(index_q: Tensor, layer: LayerPages, batch: Batch) -> Tensor:
    """[n, G, N] for single tokens; the keys of a tile are gathered for all sequences at once."""
    assert layer.index_k is not None
    n, groups, dim = index_q.shape
    block = layer.index_k.shape[1]
    n_blocks = -(-batch.longest // block)
    rows = F.pad(index_q.float(), (0, 0, 0, max(0, MIN_ROWS - groups)))
    step = max(1, GATHER_FLOATS // (n * block * dim))
    parts = []
    for b in range(0, n_blocks, step):
        keys = layer.index_k[batch.tables[:, b : min(b + step, n_blocks)]].flatten(1, 2).float()
        products = (rows @ keys.transpose(1, 2))[:, :groups]
        parts.append(_block_maxima(products, b * block, batch.positions[:n], block))
    return torch.cat(parts, -1)


def _segment_scores(index_q: Tensor, layer: LayerPages, segment: Segment, positions: Tensor) -> Tensor:
    """[count, G, N] for the tokens of one sequence."""
    assert layer.index_k is not None
    count, groups, dim = index_q.shape
    block = layer.index_k.shape[1]
    n_blocks = -(-segment.end // block)
    rows = index_q.float().flatten(0, 1)
    rows = F.pad(rows, (0, 0, 0, max(0, MIN_ROWS - len(rows))))
    most = SCORE_FLOATS.get(rows.device.type, GATHER_FLOATS)
    step = max(1, most // (max(len(rows), dim) * block))
    parts = []
    for b in range(0, n_blocks, step):
        keys = layer.index_k[segment.table[b : min(b + step, n_blocks)]].flatten(0, 1).float()
        products = (rows @ keys.T)[: count * groups].unflatten(0, (count, groups))
        parts.append(_block_maxima(products, b * block, positions, block, segment.first + 1))
    return torch.cat(parts, -1)


def _attend_blocks(q: Tensor, layer: LayerPages, tables: Tensor, blocks: Tensor, positions: Tensor) -> Tensor:
    """Attention of each query to its blocks. q [T, Hq, D], tables [T, >= N], blocks int32 [T, G, K] -> [T, Hq, D]."""
    count, _, dim = q.shape
    _, groups, block, _ = layer.k.shape
    topk = blocks.shape[-1]
    out = torch.empty_like(q)
    step = max(1, GATHER_FLOATS // (groups * topk * block * dim))
    group = torch.arange(groups, device=q.device)[:, None]
    inside = torch.arange(block, device=q.device)
    for t in range(0, count, step):
        part = slice(t, min(t + step, count))
        chosen = blocks[part].long()
        pages = tables[part].gather(1, chosen.clamp(min=0).flatten(1)).view_as(chosen)
        k, v = (pool[pages, group].flatten(2, 3).float() for pool in (layer.k, layer.v))  # [t, G, topk*block, D]
        key_position = (chosen[..., None] * block + inside).flatten(2)
        empty = (chosen < 0)[..., None].expand(*chosen.shape, block).flatten(2)
        hidden = (empty | (key_position > positions[part, None, None]))[..., None]  # [t, G, topk*block, 1]
        grouped = q[part].float().unflatten(1, (groups, -1)) / math.sqrt(dim)
        scores = (grouped @ k.transpose(-1, -2)).masked_fill(hidden.transpose(-1, -2), NEG_INF)
        merged = scores.softmax(-1) @ v.masked_fill(hidden, 0.0)
        out[part] = merged.flatten(1, 2).to(q.dtype)
    return out

"""Sparse attention of a prefill chunk, eight neighbouring queries at a time, in Triton.

Neighbours choose much the same blocks, so a program serves 8 of them (x 16 heads = 128 matrix rows) and walks the union
of their blocks once; a bit per query says who chose a block. Nothing is gathered and no parts are written.

  union   one program per (tile of 8 rows, group): the different blocks ascending, with their bits
  attend  one program per (tile, group, split): online softmax over the union
  merge   only when few tiles were split over the union to fill the chip (triton_decode._merge_kernel)

Cost against the floor: union / K times the arithmetic (K blocks each). Queries that choose independently of each other
have a union of up to 8 (K - 1) + 1 blocks, 7.6 times; then the block-major form wins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.msa.kernels.triton_choice import MAX_ID
from engine.msa.kernels.triton_decode import LOG2_E, _math, _merge_kernel, _table_row
from engine.msa.layouts import PageTable, PrefillBatch

QUERIES = 8


@triton.jit
def _union_kernel(
    blocks,  # int32 [T, G, TOPK]
    row_tokens,
    tiles,  # int32 [tiles, 3]: request, first row, rows
    unions,  # int32 [tiles, G, 2, QUERIES * SLOTS]: block << QUERIES | bits of the queries that chose it; its page
    counts,  # int32 [tiles, G]
    table, rows_of_table, row_stride, step, shift, blocks_row_stride, blocks_group_stride,
    GROUPS: tl.constexpr, SLOTS: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr,
    HAS_ROWS: tl.constexpr,
):  # fmt: skip
    tile, group = tl.program_id(0), tl.program_id(1)
    pages = _table_row(table, row_stride, rows_of_table, tl.load(tiles + tile * 3), HAS_ROWS)
    first, rows = tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
    WIDTH: tl.constexpr = QUERIES * SLOTS
    index = tl.arange(0, WIDTH)
    query, slot = index // SLOTS, index % SLOTS
    live = (query < rows) & (slot < TOPK)
    row = first + query
    at = row.to(tl.int64) * blocks_row_stride + group * blocks_group_stride + slot
    block = tl.load(blocks + at, mask=live, other=-1)
    left = tl.load(row_tokens + row, mask=live, other=0)
    block = tl.where((block >= 0) & (block < (left + BLOCK - 1) // BLOCK), block, MAX_ID)
    same = block[:, None] == block[None, :]
    # A query names a block once, so the sum of its choosers' bits is their union.
    bits = tl.sum(tl.where(same, (1 << query)[None, :], 0), axis=1)
    earlier = tl.sum((same & (index[None, :] < index[:, None])).to(tl.int32), axis=1)
    new = (earlier == 0) & (block != MAX_ID)
    rank = tl.sum((new[None, :] & (block[None, :] < block[:, None])).to(tl.int32), axis=1)
    page = tl.load(pages + block.to(tl.int64) * step, mask=new, other=0) >> shift
    to = (tile * GROUPS + group) * (2 * WIDTH)
    tl.store(unions + to + rank, (block << QUERIES) | bits, mask=new)
    tl.store(unions + to + WIDTH + rank, page, mask=new)
    tl.store(counts + tile * GROUPS + group, tl.sum(new.to(tl.int32), axis=0))


@triton.jit
def _attend_kernel(
    query, keys, values, row_tokens, request_tokens, tiles, unions, counts, output, lse,
    partial,  # fp32 [rows, G, SPLITS, HEADS, D] when SPLITS > 1
    state,  # fp32 [rows, G, SPLITS, 2, HEADS]
    query_row_stride, query_head_stride,
    k_page_stride, k_token_stride, k_head_stride, v_page_stride, v_token_stride, v_head_stride,
    output_row_stride, output_head_stride, scale_log2, value_scale,
    GROUPS: tl.constexpr, GQA: tl.constexpr, HEADS: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
    D: tl.constexpr, SPLITS: tl.constexpr, QUERIES: tl.constexpr, HAS_LSE: tl.constexpr, MATH: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    unit, split = tl.program_id(0), tl.program_id(1)
    tile, group = unit // GROUPS, unit % GROUPS
    request, first = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 1)
    tile_rows = tl.load(tiles + tile * 3 + 2)
    M: tl.constexpr = QUERIES * HEADS
    m, d, token = tl.arange(0, M), tl.arange(0, D), tl.arange(0, BLOCK)
    which, head = m // HEADS, m % HEADS
    live = (which < tile_rows) & (head < GQA)
    row = first + which
    at = row.to(tl.int64)[:, None] * query_row_stride + (group * GQA + head)[:, None] * query_head_stride
    q = tl.load(query + at + d[None, :], mask=live[:, None], other=0.0).to(MATH)
    sees = tl.load(row_tokens + row, mask=live, other=0)
    tokens = tl.load(request_tokens + request)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, D], tl.float32)
    count = tl.load(counts + unit)
    mine = unions + unit * (2 * QUERIES * SLOTS)
    for i in tl.range(count * split // SPLITS, count * (split + 1) // SPLITS, num_stages=STAGES):
        entry, page = tl.load(mine + i), tl.load(mine + QUERIES * SLOTS + i).to(tl.int64)
        block = entry >> QUERIES
        there = (token < tokens - block * BLOCK)[:, None]
        k_at = page * k_page_stride + group * k_head_stride + token[:, None] * k_token_stride + d[None, :]
        key = tl.load(keys + k_at, mask=there, other=0.0).to(MATH)
        s = tl.dot(q, tl.trans(key)) * scale_log2
        limit = tl.where(((entry >> which) & 1) != 0, sees - block * BLOCK, 0)
        s = tl.where(token[None, :] < limit[:, None], s, float("-inf"))
        high = tl.maximum(top, tl.max(s, axis=1))
        base = tl.where(high == float("-inf"), 0.0, high)  # a query that has seen nothing yet
        shrink = tl.exp2(top - base)
        p = tl.exp2(s - base[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        v_at = page * v_page_stride + group * v_head_stride + token[:, None] * v_token_stride + d[None, :]
        value = tl.load(values + v_at, mask=there, other=0.0).to(MATH)
        out = tl.dot(p.to(MATH), value, out * shrink[:, None])
        top = high
    if SPLITS > 1:
        to = (row.to(tl.int64) * GROUPS + group) * SPLITS + split
        inside = (which < tile_rows)[:, None]
        tl.store(partial + to[:, None] * (HEADS * D) + head[:, None] * D + d[None, :], out, mask=inside)
        tl.store(state + to * (2 * HEADS) + head, top, mask=which < tile_rows)
        tl.store(state + to * (2 * HEADS) + HEADS + head, total, mask=which < tile_rows)
    else:
        safe = tl.where(total > 0, total, 1.0)
        to = row.to(tl.int64)[:, None] * output_row_stride + (group * GQA + head)[:, None] * output_head_stride
        out = out * tl.where(total > 0, value_scale / safe, 0.0)[:, None]
        tl.store(output + to + d[None, :], out.to(output.dtype.element_ty), mask=live[:, None])
        if HAS_LSE:
            to = row.to(tl.int64) * (GROUPS * GQA) + group * GQA + head
            tl.store(
                lse + to,
                tl.where(total > 0, (top + tl.log2(safe)) * 0.6931471805599453, float("-inf")),
                mask=live,
            )


@dataclass(frozen=True)
class Tuning:
    """Launch numbers, none measured yet. `splits` 0: as many as fill the chip twice."""

    splits: int = 0
    warps: int = 8
    stages: int = 3


class UnionRunner:
    """Attention of one planned batch to given blocks; same call as BlockMajorRunner."""

    def __init__(self, batch: PrefillBatch, device: torch.device, tuning: Tuning | None = None) -> None:
        self.batch, self.device, self.tuning = batch, device, tuning or Tuning()
        self.slots = triton.next_power_of_2(batch.config.topk_blocks)
        self.heads = max(
            2, triton.next_power_of_2(batch.heads)
        )  # 8 queries x 2 heads: the least a matrix operand takes
        tiles, first = [], 0
        for request, count in enumerate(batch.new_tokens):
            tiles += [(request, first + at, min(QUERIES, count - at)) for at in range(0, count, QUERIES)]
            first += count
        self.tiles = torch.tensor(tiles, dtype=torch.int32).to(device)
        units = len(tiles) * batch.groups
        self.row_tokens, self.row_request = batch.row_tokens(device), batch.row_request(device)
        self.request_tokens = torch.tensor(batch.lengths, dtype=torch.int32).to(device)
        programs = torch.cuda.get_device_properties(device).multi_processor_count * 2 if device.type == "cuda" else 6
        self.splits = self.tuning.splits or max(1, min(self.slots, programs // units))
        self.unions = torch.empty(units, 2, QUERIES * self.slots, dtype=torch.int32, device=device)
        self.counts = torch.empty(units, dtype=torch.int32, device=device)
        parts = batch.rows * batch.groups * self.splits if self.splits > 1 else 1
        self.partial = torch.empty(parts, self.heads, batch.head_dim, device=device)
        self.state = torch.empty(parts, 2, self.heads, device=device)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, out: Tensor, *,
        scale: float, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
    ) -> None:  # fmt: skip
        """`table` by request, as the plan was given it."""
        batch, t, config = self.batch, self.tuning, self.batch.config
        has_rows = table.rows is not None
        _union_kernel[(len(self.tiles), batch.groups)](
            blocks, self.row_tokens, self.tiles, self.unions, self.counts, table.table,
            table.rows if has_rows else self.row_request, table.table.stride(0), table.step, table.shift,
            blocks.stride(0), blocks.stride(1),
            GROUPS=batch.groups, SLOTS=self.slots, TOPK=config.topk_blocks, BLOCK=config.block_size, QUERIES=QUERIES,
            HAS_ROWS=has_rows, num_warps=4,
        )  # fmt: skip
        has_lse = lse is not None
        _attend_kernel[(len(self.counts), self.splits)](
            q, k, v, self.row_tokens, self.request_tokens, self.tiles, self.unions, self.counts, out, lse if has_lse else out,
            self.partial, self.state,
            q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], out.stride(0), out.stride(1),
            scale * k_scale * LOG2_E, v_scale,
            GROUPS=batch.groups, GQA=batch.heads, HEADS=self.heads, SLOTS=self.slots, BLOCK=config.block_size,
            D=batch.head_dim, SPLITS=self.splits, QUERIES=QUERIES, HAS_LSE=has_lse,
            MATH=_math(batch.query_dtype, batch.kv_dtype), STAGES=t.stages, num_warps=t.warps,
        )  # fmt: skip
        if self.splits > 1:
            _merge_kernel[(batch.rows * batch.groups,)](
                self.partial, self.state, out, lse if has_lse else out, out.stride(0), out.stride(1), v_scale,
                GROUPS=batch.groups, GQA=batch.heads, HEADS=self.heads, D=batch.head_dim, SPLITS=self.splits,
                HAS_LSE=has_lse, num_warps=4,
            )  # fmt: skip

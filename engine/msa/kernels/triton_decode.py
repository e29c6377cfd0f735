"""Decode in Triton: the form for every GPU without kernels of its own, and, under TRITON_INTERPRET=1, for CPU tests.

Four kernels, grids from shapes only, no host synchronisation, no allocation at run time:
  score   one program per (request, chunk of complete blocks): dot, maximum per block, and a running best-K per column
          (query row, group) kept in registers as packed numbers (triton_choice.py). No score array.
  choose  one program per (row, group): best K - 1 of all chunks, plus the own block; ascending
  attend  one program per (row, group, split of the chosen blocks): online softmax
  merge   one program per (row, group): splits by log-sum-exp

Floors as for the CUDA kernels: bytes over bandwidth. Tiles: one block of keys (128 x 128); columns and heads padded to
16, the least a matrix operand takes. e4m3 is widened to fp16, exactly, and queries with it."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.msa.kernels.triton_choice import (
    candidate,
    first_blocks,
    keep_best,
    nothing_kept,
    pick_blocks,
    store_ascending,
)
from engine.msa.layouts import DecodeShape, PageTable

LOG2_E = math.log2(math.e)


@triton.jit
def _row_length(lengths, request, j, QUERIES: tl.constexpr, PER_ROW: tl.constexpr):
    if PER_ROW:
        return tl.load(lengths + request * QUERIES + j).to(tl.int32)
    else:
        return tl.load(lengths + request).to(tl.int32) - (QUERIES - 1 - j)


@triton.jit
def _table_row(table, row_stride, rows, request, HAS_ROWS: tl.constexpr):
    row = request.to(tl.int64)
    if HAS_ROWS:
        row = tl.load(rows + request).to(tl.int64)
    return table + row * row_stride


@triton.jit
def _score_kernel(
    query,  # [rows, G, D]
    keys,  # [P, BLOCK, D]
    candidates,  # int64 [rows * G, CHUNKS, K]
    table, lengths, rows, row_stride, step, shift,
    query_row_stride, query_head_stride, page_stride,
    QUERIES: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
    K: tl.constexpr, TOPK: tl.constexpr, INIT: tl.constexpr, LOCAL: tl.constexpr, CHUNKS: tl.constexpr,
    HAS_ROWS: tl.constexpr, PER_ROW: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    request, chunk = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    live = column < QUERIES * GROUPS
    j = tl.where(live, column // GROUPS, 0)
    own = (_row_length(lengths, request, j, QUERIES, PER_ROW) - 1) // BLOCK
    last = (_row_length(lengths, request, QUERIES - 1, QUERIES, PER_ROW) - 1) // BLOCK
    count = tl.where(last >= TOPK, last, 0)  # complete blocks worth scoring: none when everything is chosen
    begin, end = count * chunk // CHUNKS, count * (chunk + 1) // CHUNKS

    d = tl.arange(0, D)
    row = request * QUERIES + j
    at = row.to(tl.int64)[:, None] * query_row_stride + (column % GROUPS)[:, None] * query_head_stride + d[None, :]
    q = tl.load(query + at, mask=live[:, None], other=0.0).to(MATH)
    pages = _table_row(table, row_stride, rows, request, HAS_ROWS)
    token = tl.arange(0, BLOCK)
    slot = tl.arange(0, K)
    best = nothing_kept(COLUMNS, K)
    zero = tl.full([], 0, tl.int64)
    for block in range(begin, end):
        page = (tl.load(pages + (zero + block) * step) >> shift).to(tl.int64)
        key = tl.load(keys + page * page_stride + token[:, None] * D + d[None, :]).to(MATH)
        score = tl.max(tl.dot(q, tl.trans(key)), axis=1)  # [COLUMNS]
        best = keep_best(best, candidate(score, block, own, INIT, LOCAL))
    to = ((row * GROUPS + column % GROUPS).to(tl.int64) * CHUNKS + chunk) * K
    tl.store(candidates + to[:, None] + slot[None, :], best, mask=live[:, None])


@triton.jit
def _choose_kernel(
    candidates,  # int64 [rows * G, CHUNKS * K]
    blocks,  # int32 [rows, G, TOPK]
    lengths,
    blocks_row_stride, blocks_group_stride,
    QUERIES: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, TOPK: tl.constexpr,
    POOL: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0), tl.program_id(1)
    length = _row_length(lengths, row // QUERIES, row % QUERIES, QUERIES, PER_ROW)
    own = tl.where(length > 0, (length - 1) // BLOCK, -1)
    if own < TOPK:
        chosen = first_blocks(own, K)
    else:
        at = (row * GROUPS + group).to(tl.int64) * POOL
        pool = tl.load(candidates + at + tl.arange(0, POOL))
        chosen = pick_blocks(pool, own, K, TOPK)
    to = blocks + row.to(tl.int64) * blocks_row_stride + group * blocks_group_stride
    store_ascending(to, chosen, K, TOPK)


@triton.jit
def _attend_kernel(
    query, keys, values, blocks,
    partial,  # fp32 [rows, G, SPLITS, HEADS, D]
    state,  # fp32 [rows, G, SPLITS, 2, HEADS]: maximum and sum, base 2
    table, lengths, rows, row_stride, step, shift,
    query_row_stride, query_head_stride,
    k_page_stride, k_token_stride, k_head_stride, v_page_stride, v_token_stride, v_head_stride,
    blocks_row_stride, blocks_group_stride, scale_log2,
    QUERIES: tl.constexpr, GROUPS: tl.constexpr, GQA: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
    D: tl.constexpr, TOPK: tl.constexpr, SPLITS: tl.constexpr, HAS_ROWS: tl.constexpr, PER_ROW: tl.constexpr,
    MATH: tl.constexpr,
):  # fmt: skip
    unit, split = tl.program_id(0), tl.program_id(1)
    row, group = unit // GROUPS, unit % GROUPS
    request = row // QUERIES
    length = _row_length(lengths, request, row % QUERIES, QUERIES, PER_ROW)
    pages = _table_row(table, row_stride, rows, request, HAS_ROWS)
    head, d, token = tl.arange(0, HEADS), tl.arange(0, D), tl.arange(0, BLOCK)
    at = row.to(tl.int64) * query_row_stride + (group * GQA + head)[:, None] * query_head_stride + d[None, :]
    q = tl.load(query + at, mask=(head < GQA)[:, None], other=0.0).to(MATH)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    out = tl.zeros([HEADS, D], tl.float32)
    chosen = blocks + row.to(tl.int64) * blocks_row_stride + group * blocks_group_stride
    for i in range(split, TOPK, SPLITS):
        block = tl.load(chosen + i)
        left = length - block * BLOCK  # tokens of the block that this row sees
        if (block >= 0) & (left > 0):
            page = (tl.load(pages + block.to(tl.int64) * step) >> shift).to(tl.int64)
            seen = token < left
            k_at = page * k_page_stride + group * k_head_stride + token[:, None] * k_token_stride + d[None, :]
            key = tl.load(keys + k_at, mask=seen[:, None], other=0.0).to(MATH)
            s = tl.dot(q, tl.trans(key)) * scale_log2
            s = tl.where(seen[None, :], s, float("-inf"))
            high = tl.maximum(top, tl.max(s, axis=1))
            shrink = tl.exp2(top - high)
            p = tl.exp2(s - high[:, None])
            total = total * shrink + tl.sum(p, axis=1)
            v_at = page * v_page_stride + group * v_head_stride + token[:, None] * v_token_stride + d[None, :]
            value = tl.load(values + v_at, mask=seen[:, None], other=0.0).to(MATH)
            out = out * shrink[:, None] + tl.dot(p.to(MATH), value)
            top = high
    to = unit.to(tl.int64) * SPLITS + split
    tl.store(partial + to * HEADS * D + head[:, None] * D + d[None, :], out)
    tl.store(state + to * 2 * HEADS + head, top)
    tl.store(state + to * 2 * HEADS + HEADS + head, total)


@triton.jit
def _merge_kernel(
    partial, state, output, lse,
    output_row_stride, output_head_stride, value_scale,
    GROUPS: tl.constexpr, GQA: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
    HAS_LSE: tl.constexpr,
):  # fmt: skip
    unit = tl.program_id(0)
    row, group = unit // GROUPS, unit % GROUPS
    head, d = tl.arange(0, HEADS), tl.arange(0, D)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    out = tl.zeros([HEADS, D], tl.float32)
    for split in range(SPLITS):
        at = unit.to(tl.int64) * SPLITS + split
        part_top = tl.load(state + at * 2 * HEADS + head)
        high = tl.maximum(top, part_top)
        mine = tl.where(top == float("-inf"), 0.0, tl.exp2(top - high))
        theirs = tl.where(part_top == float("-inf"), 0.0, tl.exp2(part_top - high))
        total = total * mine + tl.load(state + at * 2 * HEADS + HEADS + head) * theirs
        part = tl.load(partial + at * HEADS * D + head[:, None] * D + d[None, :])
        out = out * mine[:, None] + part * theirs[:, None]
        top = high
    out = out * tl.where(total > 0, value_scale / tl.where(total > 0, total, 1.0), 0.0)[:, None]
    at = row.to(tl.int64) * output_row_stride + (group * GQA + head)[:, None] * output_head_stride + d[None, :]
    tl.store(output + at, out.to(output.dtype.element_ty), mask=(head < GQA)[:, None])
    if HAS_LSE:
        value = tl.where(
            total > 0, (top + tl.log2(tl.where(total > 0, total, 1.0))) * 0.6931471805599453, float("-inf")
        )
        tl.store(lse + row.to(tl.int64) * (GROUPS * GQA) + group * GQA + head, value, mask=head < GQA)


def unsupported(shape: DecodeShape) -> str | None:
    """Why these kernels cannot do this work, or None."""
    block, dim = shape.config.block_size, shape.head_dim
    for name, value in (("block size", block), ("head dim", dim)):
        if value < 16 or value & (value - 1):
            return f"{name} {value} is not a power of two from 16 up"
    if shape.queries * shape.groups > 64:
        return f"{shape.queries} queries x {shape.groups} groups are over 64 columns"
    for name in ("query_dtype", "kv_dtype", "index_dtype"):
        if getattr(shape, name) not in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            return f"{name} {getattr(shape, name)}"
    if shape.query_dtype == torch.float8_e4m3fn:
        return "queries in fp8"
    return None


def _math(query: torch.dtype, stored: torch.dtype) -> tl.dtype:
    if stored == torch.float8_e4m3fn:
        return tl.float32 if query == torch.float32 else tl.float16
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[query]


class TritonRunner:
    """One planned shape; same calls as Sm90Runner. Not thread-safe: the workspace is its own."""

    def __init__(self, shape: DecodeShape, device: torch.device, *, programs: int | None = None) -> None:
        self.shape, self.device = shape, device
        if programs is None:
            programs = (
                8 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
            )
        config = shape.config
        self.slots = triton.next_power_of_2(config.topk_blocks)
        self.chunks = max(1, min(256, 1 << (max(1, programs // shape.requests).bit_length() - 1)))
        units = shape.rows * shape.groups
        self.splits = max(1, min(self.slots, 1 << (max(1, programs // 4 // units).bit_length() - 1)))
        self.columns = max(16, triton.next_power_of_2(shape.queries * shape.groups))
        self.heads = max(16, triton.next_power_of_2(shape.heads))
        self.candidates = torch.empty(units, self.chunks, self.slots, dtype=torch.int64, device=device)
        self.chosen = torch.empty(shape.rows, shape.groups, config.topk_blocks, dtype=torch.int32, device=device)
        self.partial = torch.empty(units, self.splits, self.heads, shape.head_dim, device=device)
        self.state = torch.empty(units, self.splits, 2, self.heads, device=device)

    def _table(self, table: PageTable) -> tuple:
        return table.table, table.table.stride(0), table.step, table.shift, table.rows is not None

    def select(self, index_q: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor, blocks: Tensor) -> None:
        shape, config = self.shape, self.shape.config
        tensor, row_stride, step, shift, has_rows = self._table(table)
        _score_kernel[(shape.requests, self.chunks)](
            index_q, index_k, self.candidates, tensor, lengths, table.rows if has_rows else lengths, row_stride, step, shift,
            index_q.stride(0), index_q.stride(1), index_k.stride(0),
            QUERIES=shape.queries, GROUPS=shape.groups, COLUMNS=self.columns, BLOCK=config.block_size, D=shape.head_dim,
            K=self.slots, TOPK=config.topk_blocks, INIT=config.init_blocks, LOCAL=config.local_blocks, CHUNKS=self.chunks,
            HAS_ROWS=has_rows, PER_ROW=shape.lengths_per_row, MATH=_math(shape.query_dtype, shape.index_dtype),
            num_warps=4, num_stages=3,
        )  # fmt: skip
        _choose_kernel[(shape.rows, shape.groups)](
            self.candidates, blocks, lengths, blocks.stride(0), blocks.stride(1),
            QUERIES=shape.queries, GROUPS=shape.groups, BLOCK=config.block_size, K=self.slots, TOPK=config.topk_blocks,
            POOL=self.chunks * self.slots, PER_ROW=shape.lengths_per_row, num_warps=4,
        )  # fmt: skip

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, lengths: Tensor, out: Tensor, *,
        scale: float, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
    ) -> None:  # fmt: skip
        shape, config = self.shape, self.shape.config
        tensor, row_stride, step, shift, has_rows = self._table(table)
        units = shape.rows * shape.groups
        _attend_kernel[(units, self.splits)](
            q, k, v, blocks, self.partial, self.state,
            tensor, lengths, table.rows if has_rows else lengths, row_stride, step, shift,
            q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], blocks.stride(0), blocks.stride(1),
            scale * k_scale * LOG2_E,
            QUERIES=shape.queries, GROUPS=shape.groups, GQA=shape.heads, HEADS=self.heads, BLOCK=config.block_size,
            D=shape.head_dim, TOPK=config.topk_blocks, SPLITS=self.splits, HAS_ROWS=has_rows, PER_ROW=shape.lengths_per_row,
            MATH=_math(shape.query_dtype, shape.kv_dtype), num_warps=8, num_stages=2,
        )  # fmt: skip
        _merge_kernel[(units,)](
            self.partial, self.state, out, lse if lse is not None else out, out.stride(0), out.stride(1), v_scale,
            GROUPS=shape.groups, GQA=shape.heads, HEADS=self.heads, D=shape.head_dim, SPLITS=self.splits,
            HAS_LSE=lse is not None, num_warps=4,
        )  # fmt: skip

    def decode(
        self, q: Tensor, index_q: Tensor, k: Tensor, v: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor,
        out: Tensor, *, scale: float, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> None:  # fmt: skip
        chosen = self.chosen if blocks is None else blocks
        self.select(index_q, index_k, table, lengths, chosen)
        self.attend(q, k, v, chosen, table, lengths, out, scale=scale, k_scale=k_scale, v_scale=v_scale, lse=lse)

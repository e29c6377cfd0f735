"""Sparse attention of a prefill chunk, key block by key block, in Triton.

A chosen block is loaded once and multiplied with all queries that chose it, where the row-by-row kernels load it once per
query: 8,192 queries x 16 blocks x 4 groups x 64 KB = 34 GB through the L2 for 0.7 ms of arithmetic.

  count   one atomic per (row, group, slot): how often a (request, block, group) was chosen, and each choice's rank there
  scan    where each block's list begins, and its first work item; one program
  fill    the lists of (row, slot), and one work item per PER queries of a block: hot blocks are spread over programs
  attend  one program per work item: K and V of the block stay on chip, M = queries x heads rows at a time stream past;
          a block is complete in itself, so its softmax needs no rescaling; the normalised part and its log-sum-exp go to
          the slot [row, group, k] that belongs to this choice alone
  merge   one program per (row, group): the parts by log-sum-exp

The order inside a list depends on the atomics' timing, but a matrix row does not depend on which row of the tile it is,
and every part has its own slot: the same input gives the same bits. Nothing is read back by the host; grids are upper
bounds and idle programs leave at once.

Floors: 2 x 2 x 128 FLOP per (query head, key); parts written and read once, 2 x T G K H D x 2 bytes (1.0 ms for the
chunk above); queries gathered K times, mostly from the L2. Workspace is bounded by passes of `pass_rows` rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.msa.kernels.triton_decode import LOG2_E, _math, _table_row
from engine.msa.layouts import PageTable, PrefillBatch


@triton.jit
def _entry(
    blocks, row_tokens, row_unit, index, row_begin, entries, blocks_row_stride, blocks_group_stride,
    GROUPS: tl.constexpr, SLOTS: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Choice number `index` of a pass, in (row, group, slot) order: row, group, slot, block, its unit, and whether it counts."""
    row = row_begin + index // (GROUPS * SLOTS)
    group, slot = index // SLOTS % GROUPS, index % SLOTS
    live = (index < entries) & (slot < TOPK)
    at = row.to(tl.int64) * blocks_row_stride + group * blocks_group_stride + slot
    block = tl.load(blocks + at, mask=live, other=-1)
    left = tl.load(row_tokens + row, mask=live, other=0)
    valid = live & (block >= 0) & (block < (left + BLOCK - 1) // BLOCK)
    unit = tl.load(row_unit + row, mask=live, other=0) + tl.where(valid, block, 0) * GROUPS + group
    return row, group, slot, block, unit, valid


@triton.jit
def _count_kernel(
    blocks,  # int32 [T, G, TOPK]
    row_tokens, row_unit,
    counts,  # int32 [units], zeroed
    ranks,  # int32 [rows of a pass, G, SLOTS]: -1 for empty slots
    row_begin, entries, blocks_row_stride, blocks_group_stride,
    GROUPS: tl.constexpr, SLOTS: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    _, _, _, _, unit, valid = _entry(
        blocks, row_tokens, row_unit, index, row_begin, entries, blocks_row_stride, blocks_group_stride,
        GROUPS, SLOTS, TOPK, BLOCK,
    )  # fmt: skip
    rank = tl.atomic_add(counts + unit, 1, mask=valid, sem="relaxed")
    tl.store(ranks + index, tl.where(valid, rank, -1), mask=index < entries)


@triton.jit
def _scan_kernel(
    counts,  # int32 [units]
    begins,  # int32 [2, units]: first list entry, first work item
    total,  # int32 [1]: work items
    units,
    PER: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    lists = tl.full([], 0, tl.int32)
    items = tl.full([], 0, tl.int32)
    for start in range(0, units, WIDTH):
        unit = start + tl.arange(0, WIDTH)
        count = tl.load(counts + unit, mask=unit < units, other=0)
        split = (count + PER - 1) // PER
        tl.store(begins + unit, lists + tl.cumsum(count, 0) - count, mask=unit < units)
        tl.store(begins + units + unit, items + tl.cumsum(split, 0) - split, mask=unit < units)
        lists += tl.sum(count, 0)
        items += tl.sum(split, 0)
    tl.store(total, items)


@triton.jit
def _fill_kernel(
    blocks, row_tokens, row_unit, row_request, counts, ranks, begins,
    lists,  # int32 [choices of a pass]: row * SLOTS + slot
    work,  # int32 [items, 4]: first list entry, entries, block, request * G + group
    row_begin, entries, units, blocks_row_stride, blocks_group_stride,
    GROUPS: tl.constexpr, SLOTS: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr, PER: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    row, group, slot, block, unit, valid = _entry(
        blocks, row_tokens, row_unit, index, row_begin, entries, blocks_row_stride, blocks_group_stride,
        GROUPS, SLOTS, TOPK, BLOCK,
    )  # fmt: skip
    rank = tl.load(ranks + index, mask=valid, other=1)
    at = tl.load(begins + unit, mask=valid, other=0) + rank
    tl.store(lists + at, row * SLOTS + slot, mask=valid)
    first = valid & (rank % PER == 0)
    item = work + (tl.load(begins + units + unit, mask=first, other=0) + rank // PER) * 4
    count = tl.load(counts + unit, mask=first, other=0)
    request = tl.load(row_request + row, mask=first, other=0)
    tl.store(item, at, mask=first)
    tl.store(item + 1, tl.minimum(count - rank, PER), mask=first)
    tl.store(item + 2, block, mask=first)
    tl.store(item + 3, request * GROUPS + group, mask=first)


@triton.jit
def _attend_kernel(
    query, keys, values, row_tokens, request_tokens, lists, work, total,
    partial,  # [rows of a pass, G, SLOTS, HEADS, D] in the query's type: normalised parts
    state,  # fp32 [rows of a pass, G, SLOTS, HEADS]: their log-sum-exp, base 2
    table, rows, row_stride, step, shift, row_begin,
    query_row_stride, query_head_stride,
    k_page_stride, k_token_stride, k_head_stride, v_page_stride, v_token_stride, v_head_stride, scale_log2,
    GROUPS: tl.constexpr, GQA: tl.constexpr, HEADS: tl.constexpr, M: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr, D: tl.constexpr, HAS_ROWS: tl.constexpr, MATH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    if item < tl.load(total):
        begin, count = tl.load(work + item * 4), tl.load(work + item * 4 + 1)
        block, owner = tl.load(work + item * 4 + 2), tl.load(work + item * 4 + 3)
        request, group = owner // GROUPS, owner % GROUPS
        pages = _table_row(table, row_stride, rows, request, HAS_ROWS)
        page = (tl.load(pages + block.to(tl.int64) * step) >> shift).to(tl.int64)
        d, token, m = tl.arange(0, D), tl.arange(0, BLOCK), tl.arange(0, M)
        # Behind the request's last token a page holds anything, NaN too.
        there = (token < tl.load(request_tokens + request) - block * BLOCK)[:, None]
        k_at = page * k_page_stride + group * k_head_stride + token[:, None] * k_token_stride + d[None, :]
        v_at = page * v_page_stride + group * v_head_stride + token[:, None] * v_token_stride + d[None, :]
        key = tl.trans(tl.load(keys + k_at, mask=there, other=0.0).to(MATH))
        value = tl.load(values + v_at, mask=there, other=0.0).to(MATH)
        head = m % HEADS
        for start in tl.range(0, count, M // HEADS, num_stages=STAGES):
            which = start + m // HEADS
            live = (which < count) & (head < GQA)
            entry = tl.load(lists + begin + which, mask=which < count, other=0)
            row = entry // SLOTS
            at = row.to(tl.int64)[:, None] * query_row_stride + (group * GQA + head)[:, None] * query_head_stride
            q = tl.load(query + at + d[None, :], mask=live[:, None], other=0.0).to(MATH)
            left = tl.load(row_tokens + row, mask=live, other=0x7FFFFFFF) - block * BLOCK
            s = tl.dot(q, key) * scale_log2
            s = tl.where(token[None, :] < left[:, None], s, float("-inf"))
            top = tl.max(s, axis=1)
            p = tl.exp2(s - top[:, None])
            sum_p = tl.sum(p, axis=1)
            out = tl.dot(p.to(MATH), value) / sum_p[:, None]
            to = ((row - row_begin).to(tl.int64) * GROUPS + group) * SLOTS + entry % SLOTS
            to = to * HEADS + head
            tl.store(partial + to[:, None] * D + d[None, :], out.to(partial.dtype.element_ty), mask=live[:, None])
            tl.store(state + to, top + tl.log2(sum_p), mask=live)


@triton.jit
def _merge_kernel(
    partial, state, ranks, output, lse, row_begin, output_row_stride, output_head_stride, value_scale,
    GROUPS: tl.constexpr, GQA: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr,
    HAS_LSE: tl.constexpr,
):  # fmt: skip
    unit = tl.program_id(0).to(tl.int64)
    row, group = row_begin + unit // GROUPS, unit % GROUPS
    head, d, slot = tl.arange(0, HEADS), tl.arange(0, D), tl.arange(0, SLOTS)
    there = tl.load(ranks + unit * SLOTS + slot) >= 0
    states = state + (unit * SLOTS + slot)[:, None] * HEADS + head[None, :]
    top = tl.max(tl.load(states, mask=there[:, None] & (head < GQA)[None, :], other=float("-inf")), axis=0)
    top = tl.where(head < GQA, top, 0.0)
    total = tl.zeros([HEADS], tl.float32)
    out = tl.zeros([HEADS, D], tl.float32)
    for k in range(SLOTS):
        live = (head < GQA) & (tl.load(ranks + unit * SLOTS + k) >= 0)
        at = (unit * SLOTS + k) * HEADS + head
        weight = tl.exp2(tl.load(state + at, mask=live, other=float("-inf")) - top)
        part = tl.load(partial + at[:, None] * D + d[None, :], mask=live[:, None], other=0.0).to(tl.float32)
        out += part * weight[:, None]
        total += weight
    total = tl.where(head < GQA, total, 1.0)
    to = row * output_row_stride + (group * GQA + head)[:, None] * output_head_stride + d[None, :]
    out = out * (value_scale / total)[:, None]
    tl.store(output + to, out.to(output.dtype.element_ty), mask=(head < GQA)[:, None])
    if HAS_LSE:
        to = row * (GROUPS * GQA) + group * GQA + head
        tl.store(lse + to, (top + tl.log2(total)) * 0.6931471805599453, mask=head < GQA)


@dataclass(frozen=True)
class Tuning:
    """Launch numbers; measured: docs/kernels.md. `per`: most queries of one work item. 64 rows and 4 warps leave room for
    two programs a multiprocessor, one's softmax under the other's dots."""

    m: int = 64
    per: int = 64
    warps: int = 4
    stages: int = 1
    pass_bytes: int = 1 << 30
    """Most bytes of parts held at once: a longer chunk is done in passes of rows."""


class BlockMajorRunner:
    """Attention of one planned batch to given blocks; same call as the decode runners' `attend`."""

    def __init__(self, batch: PrefillBatch, device: torch.device, tuning: Tuning | None = None) -> None:
        self.batch, self.device, self.tuning = batch, device, tuning or Tuning()
        t, config = self.tuning, batch.config
        self.slots = triton.next_power_of_2(config.topk_blocks)
        self.heads = triton.next_power_of_2(batch.heads)
        self.m = max(t.m, self.heads)
        per_row = batch.groups * self.slots
        part = self.heads * batch.head_dim * batch.query_dtype.itemsize
        self.pass_rows = max(1, min(batch.rows, t.pass_bytes // (per_row * part)))
        counts = [-(-n // config.block_size) for n in batch.lengths]
        first = torch.tensor([0, *counts]).cumsum(0) * batch.groups
        self.units = int(first[-1])
        self.row_request, self.row_tokens = batch.row_request(device), batch.row_tokens(device)
        self.row_unit = first[batch.row_request(torch.device("cpu")).long()].to(torch.int32).to(device)
        self.request_tokens = torch.tensor(batch.lengths, dtype=torch.int32).to(device)
        entries = self.pass_rows * per_row
        self.items = entries // t.per + min(self.units, entries)

        def numbers(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device=device)

        self.counts, self.begins, self.total = numbers(self.units), numbers(2, self.units), numbers(1)
        self.ranks, self.lists, self.work = numbers(entries), numbers(entries), numbers(self.items, 4)
        self.partial = numbers(entries, self.heads, batch.head_dim, dtype=batch.query_dtype)
        self.state = numbers(entries, self.heads, dtype=torch.float32)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, out: Tensor, *,
        scale: float, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
    ) -> None:  # fmt: skip
        """`table` by request, as the plan was given it."""
        for begin in range(0, self.batch.rows, self.pass_rows):
            rows = min(self.pass_rows, self.batch.rows - begin)
            self._invert(blocks, begin, rows)
            self._attend(q, k, v, table, begin, rows, scale * k_scale * LOG2_E)
            self._merge(out, lse, begin, rows, v_scale)

    def _invert(self, blocks: Tensor, begin: int, rows: int) -> None:
        batch, width = self.batch, 1024
        entries = rows * batch.groups * self.slots
        sizes = {
            "GROUPS": batch.groups, "SLOTS": self.slots, "TOPK": batch.config.topk_blocks,
            "BLOCK": batch.config.block_size,
        }  # fmt: skip
        strides = blocks.stride(0), blocks.stride(1)
        grid = (triton.cdiv(entries, width),)
        self.counts.zero_()
        _count_kernel[grid](
            blocks,
            self.row_tokens,
            self.row_unit,
            self.counts,
            self.ranks,
            begin,
            entries,
            *strides,
            WIDTH=width,
            **sizes,
        )
        _scan_kernel[(1,)](
            self.counts, self.begins, self.total, self.units, PER=self.tuning.per,
            WIDTH=min(8192, max(16, triton.next_power_of_2(self.units))), num_warps=16,
        )  # fmt: skip
        _fill_kernel[grid](
            blocks, self.row_tokens, self.row_unit, self.row_request, self.counts, self.ranks, self.begins, self.lists,
            self.work, begin, entries, self.units, *strides, PER=self.tuning.per, WIDTH=width, **sizes,
        )  # fmt: skip

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, table: PageTable, begin: int, rows: int, scale: float) -> None:
        batch, t, entries = self.batch, self.tuning, rows * self.batch.groups * self.slots
        has_rows = table.rows is not None
        _attend_kernel[(entries // t.per + min(self.units, entries),)](
            q, k, v, self.row_tokens, self.request_tokens, self.lists, self.work, self.total, self.partial, self.state,
            table.table, table.rows if has_rows else self.row_request, table.table.stride(0), table.step, table.shift, begin,
            q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], scale,
            GROUPS=batch.groups, GQA=batch.heads, HEADS=self.heads, M=self.m, SLOTS=self.slots,
            BLOCK=batch.config.block_size, D=batch.head_dim, HAS_ROWS=has_rows,
            MATH=_math(batch.query_dtype, batch.kv_dtype), STAGES=t.stages, num_warps=t.warps,
        )  # fmt: skip

    def _merge(self, out: Tensor, lse: Tensor | None, begin: int, rows: int, v_scale: float) -> None:
        batch = self.batch
        _merge_kernel[(rows * batch.groups,)](
            self.partial, self.state, self.ranks, out, lse if lse is not None else out, begin, out.stride(0), out.stride(1),
            v_scale, GROUPS=batch.groups, GQA=batch.heads, HEADS=self.heads, D=batch.head_dim, SLOTS=self.slots,
            HAS_LSE=lse is not None, num_warps=4,
        )  # fmt: skip

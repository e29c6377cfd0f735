"""Choosing blocks for a prefill chunk without a score array, in Triton.

  score  one program per work item (tile of queries, range of blocks): the G index heads of neighbouring queries are
         stacked to M matrix rows; one dot per block of keys, its maximum, and a running best K per row on chip, as packed
         numbers (triton_choice.py). Leaves K candidates per row and item
  choose one program per (row, group): the best K - 1 of the tile's items and the own block, ascending
Work items are planned on the host: tiles skip blocks after their last query, long tiles are cut into pieces so that all
items are about equally long and there are several per program slot, and the longest begin first. With few query rows that
cut is the split over keys.

Floors: 2 x 128 FLOP per (query, index head, key); 256 queries x heads per 32 KB of keys keep the L2 under 3 TB/s at the
full matrix rate, 128 would ask for 6."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.msa.kernels.triton_choice import (
    EMPTY,
    candidate,
    first_blocks,
    keep_best,
    nothing_kept,
    pick_blocks,
    store_ascending,
)
from engine.msa.kernels.triton_decode import _math, _table_row
from engine.msa.layouts import PageTable, PrefillBatch


@triton.jit
def _score_kernel(
    query,  # [T, G, D]
    keys,  # [P, BLOCK, D]
    candidates,  # int64 [items, M, K]
    items,  # int32 [items, 6]: request, first row, rows, first block, end, where its candidates go
    row_tokens, table, rows, row_stride, step, shift,
    query_row_stride, query_head_stride, page_stride,
    GROUPS: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr, K: tl.constexpr, INIT: tl.constexpr,
    LOCAL: tl.constexpr, HAS_ROWS: tl.constexpr, MATH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    item = items + tl.program_id(0) * 6
    request, first, count = tl.load(item), tl.load(item + 1), tl.load(item + 2)
    column = tl.arange(0, M)
    live = column < count * GROUPS
    row = first + column // GROUPS
    own = (tl.load(row_tokens + row, mask=live, other=1) - 1) // BLOCK
    d, token, slot = tl.arange(0, D), tl.arange(0, BLOCK), tl.arange(0, K)
    at = row.to(tl.int64)[:, None] * query_row_stride + (column % GROUPS)[:, None] * query_head_stride + d[None, :]
    q = tl.load(query + at, mask=live[:, None], other=0.0).to(MATH)
    pages = _table_row(table, row_stride, rows, request, HAS_ROWS)
    best = nothing_kept(M, K)
    zero = tl.full([], 0, tl.int64)
    for block in tl.range(tl.load(item + 3), tl.load(item + 4), num_stages=STAGES):
        page = (tl.load(pages + (zero + block) * step) >> shift).to(tl.int64)
        key = tl.load(keys + page * page_stride + token[:, None] * D + d[None, :]).to(MATH)
        score = tl.max(tl.dot(q, tl.trans(key)), axis=1)
        best = keep_best(best, candidate(score, block, own, INIT, LOCAL))
    to = (tl.load(item + 5).to(tl.int64) * M + column) * K
    tl.store(candidates + to[:, None] + slot[None, :], best, mask=live[:, None])


@triton.jit
def _choose_kernel(
    candidates,  # int64 [items, M, K]
    row_tile,  # int32 [T]: tile of each row
    tiles,  # int32 [tiles, 3]: first row, where its candidates begin, pieces
    row_tokens, blocks, blocks_row_stride, blocks_group_stride,
    GROUPS: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, TOPK: tl.constexpr, POOL: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0), tl.program_id(1)
    own = (tl.load(row_tokens + row) - 1) // BLOCK
    if own < TOPK:
        chosen = first_blocks(own, K)
    else:
        tile = tiles + tl.load(row_tile + row) * 3
        first, begin, pieces = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
        index = tl.arange(0, POOL)
        at = ((begin + index // K).to(tl.int64) * M + (row - first) * GROUPS + group) * K + index % K
        pool = tl.load(candidates + at, mask=index < pieces * K, other=EMPTY)
        chosen = pick_blocks(pool, own, K, TOPK)
    to = blocks + row.to(tl.int64) * blocks_row_stride + group * blocks_group_stride
    store_ascending(to, chosen, K, TOPK)


@dataclass(frozen=True)
class Tuning:
    """Launch numbers; measured: docs/kernels.md. `m`: matrix rows of a tile; `waves`: work items per program slot. Triton
    counts the page id as a stage of its own, so 3 stages keep one block of keys in flight; a second program on the
    multiprocessor hides more than a second block does."""

    m: int = 128
    warps: int = 8
    stages: int = 3
    waves: int = 4


Item = tuple[int, int, int, int, int, int]


def plan_items(batch: PrefillBatch, per_tile: int, slots: int) -> tuple[list[Item], list[tuple[int, int, int]]]:
    """Work items (see `_score_kernel`), longest first, and tiles (first row, first candidate list, pieces) in row order.

    Tiles whose every row sees at most K blocks have no items. slots: about how many items are wanted."""
    size, first, spans = batch.config.block_size, 0, []
    for request, (count, length) in enumerate(zip(batch.new_tokens, batch.lengths, strict=True)):
        for at in range(0, count, per_tile):
            rows = min(per_tile, count - at)
            last_own = (length - count + at + rows - 1) // size
            spans.append((request, first + at, rows, last_own if last_own >= batch.config.topk_blocks else 0))
        first += count
    longest = max(1, -(-sum(span[3] for span in spans) // slots))
    items: list[Item] = []
    tiles = []
    for request, row, rows, blocks in spans:
        pieces = -(-blocks // longest)
        tiles.append((row, len(items), pieces))
        for piece in range(pieces):
            span = blocks * piece // pieces, blocks * (piece + 1) // pieces
            items.append((request, row, rows, *span, len(items)))
    return sorted(items, key=lambda item: item[3] - item[4]), tiles


class FusedSelect:
    """The choice for one planned batch; same call as TritonExtendSelect."""

    def __init__(self, batch: PrefillBatch, device: torch.device, tuning: Tuning | None = None) -> None:
        self.batch, self.tuning = batch, tuning or Tuning()
        per_tile = max(1, self.tuning.m // batch.groups)
        programs = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
        items, tiles = plan_items(batch, per_tile, programs * self.tuning.waves)
        self.item_count = len(items)
        self.items = torch.tensor(items or [(0,) * 6], dtype=torch.int32).to(device)
        self.tiles = torch.tensor(tiles, dtype=torch.int32).to(device)
        ends = [tile[0] for tile in tiles[1:]] + [batch.rows]
        counts = torch.tensor([end - tile[0] for tile, end in zip(tiles, ends, strict=True)])
        self.row_tile = torch.repeat_interleave(torch.arange(len(tiles), dtype=torch.int32), counts).to(device)
        self.row_tokens, self.row_request = batch.row_tokens(device), batch.row_request(device)
        self.k = triton.next_power_of_2(batch.config.topk_blocks)
        self.pool = triton.next_power_of_2(max(1, max(tile[2] for tile in tiles)) * self.k)
        self.candidates = torch.empty(max(1, len(items)), self.tuning.m, self.k, dtype=torch.int64, device=device)

    def run(self, index_q: Tensor, index_k: Tensor, table: PageTable, blocks: Tensor) -> None:
        batch, config, t = self.batch, self.batch.config, self.tuning
        has_rows = table.rows is not None
        if self.item_count:
            _score_kernel[(self.item_count,)](
                index_q, index_k, self.candidates, self.items, self.row_tokens, table.table,
                table.rows if has_rows else self.row_request, table.table.stride(0), table.step, table.shift,
                index_q.stride(0), index_q.stride(1), index_k.stride(0),
                GROUPS=batch.groups, M=t.m, BLOCK=config.block_size, D=index_q.shape[2], K=self.k, INIT=config.init_blocks,
                LOCAL=config.local_blocks, HAS_ROWS=has_rows, MATH=_math(index_q.dtype, index_k.dtype), STAGES=t.stages,
                num_warps=t.warps,
            )  # fmt: skip
        _choose_kernel[(batch.rows, batch.groups)](
            self.candidates, self.row_tile, self.tiles, self.row_tokens, blocks, blocks.stride(0), blocks.stride(1),
            GROUPS=batch.groups, M=t.m, BLOCK=config.block_size, K=self.k, TOPK=config.topk_blocks, POOL=self.pool,
            num_warps=4,
        )  # fmt: skip

"""Choosing blocks for a few new tokens behind a long prefix (and for any chunk of a prefill), in Triton.

An agent's turn appends a hundred tokens to a context of a hundred thousand. The index keys of the whole prefix have to be
read, but a grid over query tiles alone has two or four programs for that. So the keys are split too:
  score  one program per (tile of query columns, chunk of blocks): the G index heads of 32 neighbouring queries are stacked
         to 128 columns, one dot of 128 x 128 x 128 per block, maximum over the block, fp32 score [T G, N]
  choose one program per (row, group): the best K - 1 complete blocks and the own one, ascending
Floors: index keys once from memory; 2 * 128 * columns * keys FLOP. The score array is small next to both: 16 bytes per
(query, block of 32 KB).

Tiles are planned on the host, where an engine knows the lengths of what it is about to run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.msa.kernels.triton_choice import candidate, first_blocks, pick_blocks, store_ascending
from engine.msa.kernels.triton_decode import _math, _table_row
from engine.msa.layouts import PageTable, PrefillBatch

COLUMNS = 128


@triton.jit
def _score_kernel(
    query,  # [T, G, D]
    keys,  # [P, BLOCK, D]
    scores,  # fp32 [T * G, score_stride]
    tiles,  # int32 [tiles, 4]: request, first row, rows, blocks to score
    table, rows, row_stride, step, shift,
    query_row_stride, query_head_stride, page_stride, score_stride,
    GROUPS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
    HAS_ROWS: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    tile, chunk = tl.program_id(0), tl.program_id(1)
    request, first = tl.load(tiles + tile * 4), tl.load(tiles + tile * 4 + 1)
    count, blocks = tl.load(tiles + tile * 4 + 2), tl.load(tiles + tile * 4 + 3)
    chunks = tl.num_programs(1)  # not a constant: a server would compile anew for each number of new tokens
    begin, end = blocks * chunk // chunks, blocks * (chunk + 1) // chunks
    column = tl.arange(0, TILE)
    live = column < count * GROUPS
    row = first + column // GROUPS
    d = tl.arange(0, D)
    at = row.to(tl.int64)[:, None] * query_row_stride + (column % GROUPS)[:, None] * query_head_stride + d[None, :]
    q = tl.load(query + at, mask=live[:, None], other=0.0).to(MATH)
    pages = _table_row(table, row_stride, rows, request, HAS_ROWS)
    token = tl.arange(0, BLOCK)
    to = scores + (row * GROUPS + column % GROUPS).to(tl.int64) * score_stride
    zero = tl.full([], 0, tl.int64)
    for block in range(begin, end):
        page = (tl.load(pages + (zero + block) * step) >> shift).to(tl.int64)
        key = tl.load(keys + page * page_stride + token[:, None] * D + d[None, :]).to(MATH)
        score = tl.max(tl.dot(q, tl.trans(key)), axis=1)
        tl.store(to + block, score, mask=live)


@triton.jit
def _choose_kernel(
    scores,  # fp32 [T * G, score_stride]
    row_tokens,  # int32 [T]: position + 1
    blocks,  # int32 [T, G, TOPK]
    score_stride, blocks_row_stride, blocks_group_stride,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, TOPK: tl.constexpr, INIT: tl.constexpr,
    LOCAL: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0), tl.program_id(1)
    own = (tl.load(row_tokens + row) - 1) // BLOCK
    if own < TOPK:
        chosen = first_blocks(own, K)
    else:
        block = tl.arange(0, N)
        score = tl.load(
            scores + (row * GROUPS + group).to(tl.int64) * score_stride + block, mask=block < own, other=0.0
        )
        pool = candidate(score, block, own, INIT, LOCAL)
        chosen = pick_blocks(pool, own, K, TOPK)
    to = blocks + row.to(tl.int64) * blocks_row_stride + group * blocks_group_stride
    store_ascending(to, chosen, K, TOPK)


class TritonExtendSelect:
    """The choice for one planned batch of new tokens: see engine/msa/extend.py."""

    def __init__(self, batch: PrefillBatch, device: torch.device) -> None:
        groups, config = self.groups, self.config = batch.groups, batch.config
        self.row_tokens = batch.row_tokens(device)
        size, per_tile = config.block_size, COLUMNS // groups
        tiles, first = [], 0
        for request, (count, length) in enumerate(zip(batch.new_tokens, batch.lengths, strict=True)):
            begin = length - count  # position of the first new token
            for at in range(0, count, per_tile):
                rows = min(per_tile, count - at)
                last_own = (begin + at + rows - 1) // size
                if last_own >= config.topk_blocks:  # else every row of the tile sees at most K blocks
                    tiles.append((request, first + at, rows, last_own))
            first += count
        self.rows, self.tile_count = first, len(tiles)
        self.max_blocks = max([1, *(tile[3] for tile in tiles)])
        self.tiles = torch.tensor(tiles or [(0, 0, 0, 0)], dtype=torch.int32).to(device)
        programs = 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3
        self.chunks = max(1, min(self.max_blocks, -(-programs // max(1, self.tile_count))))
        # Without tiles the choice reads none, but is compiled for scores in fp32 all the same.
        self.scores = torch.empty(first * groups if tiles else 1, self.max_blocks, device=device)

    def run(self, index_q: Tensor, index_k: Tensor, table: PageTable, blocks: Tensor) -> None:
        config, groups, row_tokens = self.config, self.groups, self.row_tokens
        has_rows = table.rows is not None
        stride = self.scores.stride(0)
        if self.tile_count:
            _score_kernel[(self.tile_count, self.chunks)](
                index_q, index_k, self.scores, self.tiles, table.table, table.rows if has_rows else row_tokens,
                table.table.stride(0), table.step, table.shift,
                index_q.stride(0), index_q.stride(1), index_k.stride(0), stride,
                GROUPS=groups, TILE=COLUMNS, BLOCK=config.block_size, D=index_q.shape[2],
                HAS_ROWS=has_rows, MATH=_math(index_q.dtype, index_k.dtype), num_warps=8, num_stages=3,
            )  # fmt: skip
        _choose_kernel[(self.rows, groups)](
            self.scores, row_tokens, blocks, stride, blocks.stride(0), blocks.stride(1),
            GROUPS=groups, BLOCK=config.block_size, K=triton.next_power_of_2(config.topk_blocks), TOPK=config.topk_blocks,
            INIT=config.init_blocks, LOCAL=config.local_blocks, N=triton.next_power_of_2(self.max_blocks), num_warps=4,
        )  # fmt: skip

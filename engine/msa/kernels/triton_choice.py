"""What the Triton kernels that choose blocks have in common: how scores are ordered, the best kept, picked and written.

A candidate is one int64: the order of its score above, MAX_ID - block below. So the larger candidate is the better one, of
equal scores the earlier block wins, and EMPTY loses to every block."""

from __future__ import annotations

import triton
import triton.language as tl

EMPTY = tl.constexpr(-(1 << 63))
MAX_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def candidate(score, block, own, INIT: tl.constexpr, LOCAL: tl.constexpr):
    """Scores fp32 of `block` for rows whose own block is `own`, as candidates: forced blocks before all others, NaN behind
    all numbers, EMPTY for the own block (chosen without a score) and those after it."""
    score = tl.where(score == score, score, float("-inf")) + 0.0  # -0 equals 0
    bits = score.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    order = tl.where(block > own - LOCAL, 0x7FFFFFFE, order)
    if INIT > 0:
        order = tl.where(block < INIT, 0x7FFFFFFF, order)
    return tl.where(block < own, (order << 32) | (tl.full([], 0, tl.int64) + MAX_ID - block), EMPTY)


@triton.jit
def nothing_kept(ROWS: tl.constexpr, K: tl.constexpr):
    """int64 [ROWS, K] to start `keep_best` from: worse than every block, and distinct, so that one slot is the lowest."""
    return tl.zeros([ROWS, K], tl.int64) + EMPTY + tl.arange(0, K)[None, :]


@triton.jit
def keep_best(best, packed):
    """best [ROWS, K] with packed [ROWS] in the place of each row's lowest where it is higher."""
    lowest = tl.min(best, axis=1)
    return tl.where((best == lowest[:, None]) & (packed > lowest)[:, None], packed[:, None], best)


@triton.jit
def first_blocks(own, K: tl.constexpr):
    """int32 [K]: every block up to the own one, MAX_ID in the slots behind it. For rows that choose everything they see."""
    slot = tl.arange(0, K)
    return tl.where(slot <= own, slot, MAX_ID)


@triton.jit
def pick_blocks(pool, own, K: tl.constexpr, TOPK: tl.constexpr):
    """int32 [K]: the blocks of the best TOPK - 1 candidates of `pool` and the own one, MAX_ID in spare slots."""
    slot = tl.arange(0, K)
    chosen = tl.zeros([K], tl.int32) + MAX_ID
    for i in range(TOPK - 1):
        top = tl.max(pool, axis=0)
        chosen = tl.where(slot == i, MAX_ID - (top & 0x7FFFFFFF).to(tl.int32), chosen)
        pool = tl.where(pool == top, EMPTY, pool)
    return tl.where(slot == TOPK - 1, own, chosen)


@triton.jit
def store_ascending(to, chosen, K: tl.constexpr, TOPK: tl.constexpr):
    """Writes chosen [K] to `to` [TOPK], ascending, -1 for what is MAX_ID."""
    unique = chosen.to(tl.int64) * K + tl.arange(0, K)  # empties rank last, each at a place of its own
    rank = tl.sum((unique[None, :] < unique[:, None]).to(tl.int32), axis=1)
    tl.store(to + rank, tl.where(chosen == MAX_ID, -1, chosen), mask=rank < TOPK)

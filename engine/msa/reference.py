"""Block-sparse attention (MSA) in plain torch: the oracle for every kernel. Any device, any float dtype, no tricks.

A sequence's keys are cut into blocks of B tokens counted from position 0. Query heads come in G groups, one per
KV head, each with one index head. For the query at position i and group g, with own = i // B:

    M[b] = max over keys j in block b, j <= i, of  index_q[i, g] . index_k[j]      in fp32, unscaled: only order counts
    I    = the min(topk, own + 1) blocks with the largest M; forced blocks (init, local) come first and use up slots
    out[i, h] = softmax over {j : j // B in I, j <= i} of (q[i, h] . k[j, g] * scale)  times v[j, g],   h in group g

Choice is per group and never shared between groups. Prefill and decode are the same mathematics: positions are
absolute, so a chunk, a speculative step or a single token is just a smaller set of queries.

Letters: T queries, S keys of one sequence (a query at position i needs keys 0..i), R requests, P pages, B block size,
N = ceil(S / B) blocks, K topk_blocks, Hq query heads, G groups = KV heads = index heads, D head dim, Di index head dim.

Chosen blocks are logical ids, int32 [T, G, K]: valid ones first and ascending, so that the own block is the last
valid one, then -1. Equal scores are unspecified by the model; `check_choice` is the test that does not depend on ties.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.msa.config import MsaConfig

NEG_INF = float("-inf")
NAN_SCORE = -1e30
"""What a NaN score counts as: behind every real score, before blocks that lie in the future."""


# ------------------------------------------------------------------------------------------------ choosing blocks
def block_scores(index_q: Tensor, index_k: Tensor, positions: Tensor, config: MsaConfig) -> Tensor:
    """fp32 [T, G, N]: the largest dot product in each block, -inf for blocks that begin after the query.

    index_q [T, G, Di], index_k [S, Di], positions [T] (absolute). Keys after the query never count, also in its own
    block, whatever the memory behind them holds."""
    n_keys = index_k.shape[0]
    n_blocks = -(-n_keys // config.block_size)
    scores = torch.einsum("tgd,sd->tgs", index_q.float(), index_k.float())
    scores = torch.nan_to_num(scores, nan=NAN_SCORE, neginf=torch.finfo(torch.float32).min)
    future = torch.arange(n_keys, device=index_k.device)[None, :] > positions[:, None]
    scores = scores.masked_fill(future[:, None, :], NEG_INF)
    scores = torch.nn.functional.pad(scores, (0, n_blocks * config.block_size - n_keys), value=NEG_INF)
    return scores.unflatten(-1, (n_blocks, config.block_size)).amax(-1)


def choose_blocks(scores: Tensor, positions: Tensor, config: MsaConfig) -> Tensor:
    """Block ids int32 [T, G, K] from scores [T, G, N] (see the head for the order)."""
    n_blocks = scores.shape[-1]
    own = (positions // config.block_size)[:, None]  # [T, 1]
    block = torch.arange(n_blocks, device=scores.device)[None, :]  # [1, N]
    causal = block <= own
    local = causal & (block > own - config.local_blocks)
    init = causal & (block < config.init_blocks)
    ranked = scores.masked_fill(local[:, None], torch.finfo(scores.dtype).max)
    ranked = ranked.masked_fill(init[:, None], float("inf")).masked_fill(~causal[:, None], NEG_INF)
    best, ids = ranked.topk(min(config.topk_blocks, n_blocks), dim=-1)
    ids = ids.masked_fill(best == NEG_INF, n_blocks).sort(-1).values  # n_blocks: sorts to the end
    ids = torch.nn.functional.pad(ids, (0, config.topk_blocks - ids.shape[-1]), value=n_blocks)
    return ids.masked_fill(ids == n_blocks, -1).to(torch.int32)


def select_blocks(index_q: Tensor, index_k: Tensor, positions: Tensor, config: MsaConfig) -> Tensor:
    """Block ids int32 [T, G, K] for queries of one sequence. Arguments as in `block_scores`."""
    return choose_blocks(block_scores(index_q, index_k, positions, config), positions, config)


def check_choice(blocks: Tensor, scores: Tensor, positions: Tensor, config: MsaConfig, eps: float = 0.0) -> None:
    """Raises AssertionError unless `blocks` [T, G, K] (any order, -1 for empty slots) is a right choice for `scores`
    [T, G, N]: in range, causal, no duplicates, forced blocks in, the right count, and no chosen block worse than an
    unchosen one by more than `eps`."""
    for t, position in enumerate(positions.tolist()):
        own = position // config.block_size
        forced = set(range(max(0, own - config.local_blocks + 1), own + 1)) | set(
            range(min(config.init_blocks, own + 1))
        )
        for g in range(blocks.shape[1]):
            where = f"query {t} at position {position}, group {g}"
            chosen = [b for b in blocks[t, g].tolist() if b != -1]
            assert len(set(chosen)) == len(chosen), f"{where}: duplicates in {chosen}"
            assert all(0 <= b <= own for b in chosen), f"{where}: {chosen} leaves [0, {own}]"
            assert len(chosen) == min(config.topk_blocks, own + 1), f"{where}: {len(chosen)} blocks, own block is {own}"
            assert forced <= set(chosen), f"{where}: forced {sorted(forced)} not all in {chosen}"
            rest = [b for b in range(own + 1) if b not in chosen]
            free = [b for b in chosen if b not in forced]
            if rest and free:
                row = scores[t, g]
                worst, best = row[free].min().item(), row[rest].max().item()
                assert worst >= best - eps, f"{where}: chose a block of score {worst}, left one of {best}"


# ------------------------------------------------------------------------------------------------ attention
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Tensor | None,
    positions: Tensor,
    config: MsaConfig,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of queries of one sequence to their chosen blocks.

    q [T, Hq, D], k and v [S, G, D], blocks [T, G, K] or None (all: dense causal attention), positions [T].
    Returns out [T, Hq, D] in q's dtype and the log-sum-exp of the scaled scores, [T, Hq].
    Scores, softmax and the sum over values are computed in fp32 (fp64 for fp64 input)."""
    n_queries, n_heads, dim = q.shape
    n_keys, groups, _ = k.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    key = torch.arange(n_keys, device=k.device)
    keep = (key[None, :] <= positions[:, None])[:, None, :].expand(n_queries, groups, n_keys)
    if blocks is not None:
        n_blocks = -(-n_keys // config.block_size)
        chosen = torch.zeros(n_queries, groups, n_blocks + 1, dtype=torch.bool, device=q.device)
        chosen.scatter_(-1, blocks.long().masked_fill(blocks < 0, n_blocks), True)
        keep = keep & chosen[..., key // config.block_size]
    grouped = q.to(wide).unflatten(1, (groups, n_heads // groups))  # head h belongs to group h // (Hq / G)
    scores = torch.einsum("tghd,sgd->tghs", grouped, k.to(wide)) * (scale if scale is not None else 1 / math.sqrt(dim))
    scores = scores.masked_fill(~keep[:, :, None, :], NEG_INF)
    out = torch.einsum("tghs,sgd->tghd", scores.softmax(-1), v.to(wide))
    return out.flatten(1, 2).to(q.dtype), scores.logsumexp(-1).flatten(1, 2)


def msa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    positions: Tensor,
    config: MsaConfig,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Both steps for queries of one contiguous sequence: (out [T, Hq, D], lse [T, Hq], blocks [T, G, K])."""
    blocks = select_blocks(index_q, index_k, positions, config)
    out, lse = attend(q, k, v, blocks, positions, config, scale)
    return out, lse, blocks


# ------------------------------------------------------------------------------------------------ paged
def gather_pages(pages: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` tokens of a sequence: pages [P, B, ...], table [>= ceil(length / B)] -> [length, ...].

    Block b of the sequence is page table[b]; entries past the last needed one are never looked at (they may be -1)."""
    needed = -(-length // pages.shape[1])
    return pages[table[:needed].long()].flatten(0, 1)[:length]


def msa_prefill_paged(
    q: Tensor,
    index_q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    index_k_pages: Tensor,
    page_table: Tensor,
    cu_q: Tensor,
    lengths: Tensor,
    config: MsaConfig,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of several requests, packed. The new tokens' K, V and index keys are already in their pages.

    q [T, Hq, D], index_q [T, G, Di]; k_pages, v_pages [P, B, G, D], index_k_pages [P, B, Di]; page_table int32
    [R, max_pages]; cu_q int32 [R + 1], request r owns queries cu_q[r]..cu_q[r+1]; lengths int32 [R], tokens of the
    sequence after these queries, so that its queries sit at the last positions before lengths[r].
    Returns (out [T, Hq, D], lse [T, Hq], blocks [T, G, K], logical ids)."""
    results = []
    bounds = cu_q.tolist()
    for r, length in enumerate(lengths.tolist()):
        rows = slice(bounds[r], bounds[r + 1])
        count = bounds[r + 1] - bounds[r]
        positions = torch.arange(length - count, length, device=q.device)
        k, v, ik = (gather_pages(pages, page_table[r], length) for pages in (k_pages, v_pages, index_k_pages))
        results.append(msa(q[rows], k, v, index_q[rows], ik, positions, config, scale))
    out, lse, blocks = (torch.cat(parts) for parts in zip(*results, strict=True))
    return out, lse, blocks


def msa_decode_paged(
    q: Tensor,
    index_q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    index_k_pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    config: MsaConfig,
    scale: float | None = None,
    queries_per_request: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """`msa_prefill_paged` for the same number of queries in every request: q [R * queries_per_request, Hq, D]."""
    cu_q = torch.arange(len(lengths) + 1, device=q.device, dtype=torch.int32) * queries_per_request
    return msa_prefill_paged(q, index_q, k_pages, v_pages, index_k_pages, page_table, cu_q, lengths, config, scale)

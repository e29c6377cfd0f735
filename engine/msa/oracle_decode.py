"""The reference of decode for large cases on a GPU: fp32, request by request, without ever holding [T, S] per group of a
whole batch. Same definitions as reference.py, which is the one to read; tests hold the two against each other."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.msa.config import MsaConfig
from engine.msa.layouts import DecodeShape, PageTable
from engine.msa.reference import choose_blocks

NEG_INF = float("-inf")


def row_lengths(lengths: Tensor, queries: int) -> Tensor:
    """Tokens every query row may see, [requests * queries], from tokens after the last row, [requests]."""
    back = torch.arange(queries - 1, -1, -1, device=lengths.device)
    return (lengths[:, None] - back[None, :]).flatten()


def paged_block_scores(index_q: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor, queries: int = 1) -> Tensor:
    """fp32 [T, G, N]: as reference.block_scores, -inf behind a row's last block. index_q [T, G, D], index_k [P, 128, D]."""
    pages = table.pages(lengths.shape[0])
    block = index_k.shape[1]
    most = -(-int(lengths.max()) // block)
    out = torch.full((*index_q.shape[:2], most), NEG_INF, device=index_q.device)
    for r, length in enumerate(lengths.tolist()):
        if length <= 0:
            continue
        n = -(-length // block)
        keys = index_k[pages[r, :n].long()].flatten(0, 1)[:length].float()
        scores = torch.einsum("tgd,sd->tgs", index_q[r * queries : (r + 1) * queries].float(), keys)
        positions = torch.arange(length - queries, length, device=keys.device)
        future = torch.arange(length, device=keys.device)[None, :] > positions[:, None]
        scores = scores.masked_fill(future[:, None, :], NEG_INF)
        scores = torch.nn.functional.pad(scores, (0, n * block - length), value=NEG_INF)
        out[r * queries : (r + 1) * queries, :, :n] = scores.unflatten(-1, (n, block)).amax(-1)
    return out


def choice_fault(blocks: Tensor, scores: Tensor, row_tokens: Tensor, config: MsaConfig, eps: float) -> str | None:
    """What is wrong with the choice `blocks` [T, G, K], or None: the rule of reference.check_choice, vectorised."""
    n_blocks = scores.shape[-1]
    own = (row_tokens - 1) // config.block_size  # [T]
    ids = torch.arange(n_blocks, device=blocks.device)
    slots = torch.where((blocks < 0) | (blocks >= n_blocks), n_blocks, blocks).long()
    counts = torch.zeros(*blocks.shape[:2], n_blocks + 1, dtype=torch.int32, device=blocks.device)
    counts.scatter_add_(-1, slots, torch.ones_like(blocks))
    counts = counts[..., :n_blocks]
    causal = (ids[None, :] <= own[:, None])[:, None, :]
    forced = (
        causal & ((ids[None, :] > own[:, None] - config.local_blocks) | (ids[None, :] < config.init_blocks))[:, None, :]
    )
    want = torch.clamp(own + 1, max=config.topk_blocks)[:, None]
    ascending = torch.where(blocks < 0, n_blocks, blocks)
    checks = {
        "an id outside the sequence": bool(((blocks < -1) | (blocks >= n_blocks)).any()),
        "a block chosen twice": bool((counts > 1).any()),
        "a block after the query": bool(((counts > 0) & ~causal).any()),
        "a forced block missing": bool((forced & (counts == 0)).any()),
        "a wrong number of blocks": bool((counts.sum(-1) != want).any()),
        "ids not ascending": bool((ascending.diff(dim=-1) < 0).any()),
    }
    chosen_worst = scores.masked_fill((counts == 0) | forced, float("inf")).amin(-1)
    left_best = scores.masked_fill((counts > 0) | ~causal, NEG_INF).amax(-1)
    gap = (left_best - chosen_worst).masked_fill(~torch.isfinite(chosen_worst) | ~torch.isfinite(left_best), NEG_INF)
    checks[f"a better block left behind, by {gap.max().item():.3g}"] = bool((gap > eps).any())
    faults = [fault for fault, found in checks.items() if found]
    return "; ".join(faults) or None


def attend_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Tensor,
    table: PageTable,
    row_tokens: Tensor,
    queries: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """fp32 attention of rows to given blocks [T, G, K]: out [T, Hq, D] and lse [T, Hq]. k, v [P, 128, G, D] views."""
    rows, groups, _ = blocks.shape
    size, dim = k.shape[1], k.shape[3]
    request = torch.arange(rows, device=q.device) // queries
    pages = table.pages(rows // queries)[request]  # [T, N]
    outs, lses = [], []
    for g in range(groups):
        ids = blocks[:, g]
        page = torch.gather(pages, 1, ids.clamp(0, pages.shape[1] - 1).long()).clamp(min=0).long()  # [T, K]
        token = ids[:, :, None] * size + torch.arange(size, device=q.device)
        seen = ((ids >= 0)[:, :, None] & (token < row_tokens[:, None, None])).flatten(1)  # [T, K * size]
        key = k[page][..., g, :].float().flatten(1, 2)
        value = v[page][..., g, :].float().flatten(1, 2).masked_fill(~seen[..., None], 0.0)
        query = q.unflatten(1, (groups, -1))[:, g].float()
        scores = (torch.einsum("thd,tsd->ths", query, key) * scale).masked_fill(~seen[:, None], NEG_INF)
        outs.append(torch.einsum("ths,tsd->thd", scores.softmax(-1).nan_to_num(0.0), value))
        lses.append(scores.logsumexp(-1))
    return torch.cat(outs, 1).reshape(rows, -1, dim), torch.cat(lses, 1)


class ReferenceRunner:
    """The same calls as the kernels' runners, in plain torch: any device, dtype and size; synchronises and allocates."""

    def __init__(self, shape: DecodeShape, device: torch.device) -> None:
        self.shape = shape

    def _rows(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        queries = self.shape.queries
        if self.shape.lengths_per_row:
            return lengths[queries - 1 :: queries], lengths.long()
        return lengths, row_lengths(lengths.long(), queries)

    def select(self, index_q: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor, blocks: Tensor) -> None:
        ends, rows = self._rows(lengths)
        scores = paged_block_scores(index_q, index_k, table, ends, self.shape.queries)
        scores = torch.nan_to_num(scores, nan=-1e30, neginf=NEG_INF)
        blocks.copy_(choose_blocks(scores, (rows - 1).clamp(min=-1), self.shape.config))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, lengths: Tensor, out: Tensor, *,
        scale: float, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
    ) -> None:  # fmt: skip
        _, rows = self._rows(lengths)
        result, result_lse = attend_blocks(q, k, v, blocks, table, rows, self.shape.queries, scale * k_scale)
        out.copy_(result * v_scale)
        if lse is not None:
            lse.copy_(result_lse)

    def decode(
        self, q: Tensor, index_q: Tensor, k: Tensor, v: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor,
        out: Tensor, *, scale: float, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> None:  # fmt: skip
        shape = (self.shape.rows, self.shape.groups, self.shape.config.topk_blocks)
        chosen = torch.empty(shape, dtype=torch.int32, device=q.device) if blocks is None else blocks
        self.select(index_q, index_k, table, lengths, chosen)
        self.attend(q, k, v, chosen, table, lengths, out, scale=scale, k_scale=k_scale, v_scale=v_scale, lse=lse)

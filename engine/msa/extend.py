"""Prefill and extend: new tokens of several requests, packed, each behind its own prefix of any length.

Same mathematics as decode with absolute positions, other kernels. An agent's turn, a hundred tokens behind a long
prefix, is a matter of splitting the index score over the keys; a full chunk is a matter of reading each chosen block once
for all queries that chose it. dispatch.py says what runs; attention and choice may each be forced by name:

  attention  row by row through the decode kernels (sm90, triton, reference), block_major, union
  choice     split (scores in memory, split over keys), fused (no score array), reference

    plan = plan_prefill([100, 7], [60_100, 900], groups=4, heads=16, ...)   # new tokens and lengths after them, on the host
    plan.run(q, index_q, k, v, index_k, table, out=out)                     # for every layer of the step

q [T, G H, D], index_q [T, G, D] with T = sum of new tokens; k, v, index_k, table as in ops.py. The new tokens' K, V and
index keys are already in their pages. Plans take their workspace when made and synchronise with nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.msa import dispatch, reference
from engine.msa.config import MsaConfig
from engine.msa.layouts import PageTable, PrefillBatch, need
from engine.msa.oracle_decode import paged_block_scores


class RowByRow:
    """Attention of a batch's rows through a decode runner: each row is a request of one token."""

    def __init__(self, batch: PrefillBatch, device: torch.device, runner: Any) -> None:
        self.runner = runner
        self.row_tokens, self.row_request = batch.row_tokens(device), batch.row_request(device)

    def row_table(self, table: PageTable) -> PageTable:
        """The page table by query row instead of by request."""
        rows = self.row_request if table.rows is None else table.rows[self.row_request.long()].contiguous()
        return PageTable(table.table, rows, table.step, table.shift)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, out: Tensor, **scales: Any
    ) -> None:
        self.runner.attend(q, k, v, blocks, self.row_table(table), self.row_tokens, out, **scales)


class ReferenceSelect:
    """The choice in torch, request by request."""

    def __init__(self, batch: PrefillBatch, device: torch.device) -> None:
        self.batch, self.positions = batch, batch.row_tokens(device).long() - 1

    def run(self, index_q: Tensor, index_k: Tensor, table: PageTable, blocks: Tensor) -> None:
        pages, first = table.pages(len(self.batch.lengths)), 0
        for r, (count, length) in enumerate(zip(self.batch.new_tokens, self.batch.lengths, strict=True)):
            rows, end = slice(first, first + count), torch.tensor([length], device=index_q.device)
            scores = paged_block_scores(index_q[rows], index_k, PageTable(pages[r : r + 1]), end, count)
            blocks[rows] = reference.choose_blocks(scores, self.positions[rows], self.batch.config)
            first += count


class PrefillPlan:
    """One batch of new tokens: its tiles, positions and workspace. Made per batch, used by every layer of it."""

    def __init__(
        self, new_tokens: Sequence[int], lengths: Sequence[int], *, groups: int, heads: int, device: torch.device | str,
        config: MsaConfig | None = None, query_dtype: torch.dtype = torch.bfloat16, kv_dtype: torch.dtype = torch.bfloat16,
        index_dtype: torch.dtype = torch.bfloat16, kernel: str = "auto", select: str = "auto", head_dim: int = 128,
    ) -> None:  # fmt: skip
        """`kernel`, `select`: auto, or a name in dispatch.PREFILL and dispatch.SELECT."""
        device = torch.device(device)
        self.batch = PrefillBatch(
            tuple(new_tokens), tuple(lengths), groups, heads, query_dtype, kv_dtype, index_dtype, head_dim,
            config or MsaConfig(),
        )  # fmt: skip
        if kernel == "reference" and select == "auto":
            select = "reference"
        made = dispatch.make_prefill(self.batch, device, kernel, select)
        self.choice, self.runner, self.select_choice, self.selector = made
        self.blocks = torch.empty(
            self.batch.rows, groups, self.batch.config.topk_blocks, dtype=torch.int32, device=device
        )

    def select(self, index_q: Tensor, index_k: Tensor, table: PageTable, *, out: Tensor) -> Tensor:
        """The choice of every new token and group, int32 [T, G, K]."""
        batch = self.batch
        need(
            index_q.shape[:2] == (batch.rows, batch.groups),
            "index_q",
            f"shape is {tuple(index_q.shape)}, the plan is for ({batch.rows}, {batch.groups}, any)",
        )
        self._check(out, table)
        self.selector.run(index_q, index_k, table, out)
        return out

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, *, out: Tensor,
        scale: float | None = None, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attention of every new token to the blocks given for it (any order; -1 and ids after the token are skipped)."""
        batch = self.batch
        want = (batch.rows, batch.groups * batch.heads, batch.head_dim)
        for name, tensor in (("q", q), ("out", out)):
            need(tensor.shape == want, name, f"shape is {tuple(tensor.shape)}, the plan is for {want}")
            need(
                tensor.dtype == batch.query_dtype, name, f"dtype is {tensor.dtype}, the plan is for {batch.query_dtype}"
            )
            need(tensor.stride(-1) == 1, name, "the last dimension must be contiguous")
        for name, tensor in (("k", k), ("v", v)):
            need(tensor.dtype == batch.kv_dtype, name, f"dtype is {tensor.dtype}, the plan is for {batch.kv_dtype}")
            need(tensor.dim() == 4 and tensor.stride(-1) == 1, name, "must be [pages, block, groups, D], D contiguous")
        self._check(blocks, table)
        scale = batch.head_dim**-0.5 if scale is None else scale
        self.runner.attend(q, k, v, blocks, table, out, scale=scale, k_scale=k_scale, v_scale=v_scale, lse=lse)
        return out

    def extend(
        self, q: Tensor, index_q: Tensor, k: Tensor, v: Tensor, index_k: Tensor, table: PageTable, *, out: Tensor,
        scale: float | None = None, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Choice and attention. `blocks`, when given, receives the choice."""
        chosen = self.select(index_q, index_k, table, out=self.blocks if blocks is None else blocks)
        return self.attend(
            q, k, v, chosen, table, out=out, scale=scale, k_scale=k_scale, v_scale=v_scale, lse=lse
        )  # fmt: skip

    run = extend

    def _check(self, blocks: Tensor, table: PageTable) -> None:
        want = tuple(self.blocks.shape)
        need(
            blocks.shape == want and blocks.dtype == torch.int32 and blocks.stride(-1) == 1,
            "blocks",
            f"is {blocks.dtype} {tuple(blocks.shape)}, the plan is for int32 {want} with a contiguous last dimension",
        )
        rows = table.table.shape[0] if table.rows is None else table.rows.shape[0]
        requests, most = len(self.batch.lengths), -(-self.batch.max_tokens // self.batch.config.block_size)
        need(rows >= requests, "table", f"has {rows} rows for {requests} requests")
        need(table.max_blocks >= most, "table", f"has {table.max_blocks} blocks a row, the longest request {most}")


plan_prefill = PrefillPlan
ExtendPlan = PrefillPlan  # the name SGLang's adapter uses


def msa_prefill(
    q: Tensor, index_q: Tensor, k: Tensor, v: Tensor, index_k: Tensor, table: PageTable, new_tokens: Sequence[int],
    lengths: Sequence[int], config: MsaConfig | None = None, *, scale: float | None = None, k_scale: float = 1.0,
    v_scale: float = 1.0, kernel: str = "auto", select: str = "auto", out: Tensor | None = None, lse: Tensor | None = None,
    blocks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Choice and attention of packed new tokens, planned for this call. Servers hold a plan per step instead."""
    plan = PrefillPlan(
        new_tokens, lengths, groups=index_q.shape[1], heads=q.shape[1] // index_q.shape[1], device=q.device, config=config,
        query_dtype=q.dtype, kv_dtype=k.dtype, index_dtype=index_k.dtype, kernel=kernel, select=select, head_dim=q.shape[2],
    )  # fmt: skip
    return plan.run(
        q, index_q, k, v, index_k, table, out=torch.empty_like(q) if out is None else out, scale=scale, k_scale=k_scale,
        v_scale=v_scale, lse=lse, blocks=blocks,
    )  # fmt: skip


def sparse_prefill(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, new_tokens: Sequence[int], lengths: Sequence[int],
    config: MsaConfig | None = None, *, scale: float | None = None, k_scale: float = 1.0, v_scale: float = 1.0,
    kernel: str = "auto", out: Tensor | None = None, lse: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of packed new tokens to given blocks int32 [T, G, K], planned for this call."""
    groups = k.shape[2]
    plan = PrefillPlan(
        new_tokens, lengths, groups=groups, heads=q.shape[1] // groups, device=q.device, config=config,
        query_dtype=q.dtype, kv_dtype=k.dtype, index_dtype=q.dtype, kernel=kernel, select="reference", head_dim=q.shape[2],
    )  # fmt: skip
    return plan.attend(
        q, k, v, blocks, table, out=torch.empty_like(q) if out is None else out, scale=scale, k_scale=k_scale,
        v_scale=v_scale, lse=lse,
    )  # fmt: skip

"""Prefill and extend: new tokens of several requests, packed, each behind its own prefix of any length.

Same mathematics as decode with absolute positions, other kernels. What an agent's turn needs, a hundred tokens behind a
long prefix, is a matter of splitting the index score over the keys (kernels/triton_extend.py); attention then runs one
(row, group) at a time through the decode kernels. That is right for a few hundred rows; a full prefill chunk re-reads
each chosen block once per row and wants a block-major kernel.

    plan = plan_extend([100, 7], [60_100, 900], groups=4, heads=16, ...)    # new tokens and lengths after them, on the host
    plan.extend(q, index_q, k, v, index_k, table, out=out)

q [T, G H, D], index_q [T, G, D] with T = sum of new tokens; k, v, index_k, table as in ops.py. The new tokens' K, V and
index keys are already in their pages."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from engine.msa import dispatch, reference
from engine.msa.config import MsaConfig
from engine.msa.layouts import DecodeShape, PageTable, need
from engine.msa.oracle_decode import paged_block_scores


class ExtendPlan:
    """One batch of new tokens: its tiles, positions and workspace. Made per batch, used by every layer of it."""

    def __init__(
        self,
        new_tokens: list[int],
        lengths: list[int],
        *,
        groups: int,
        heads: int,
        device: torch.device | str,
        config: MsaConfig | None = None,
        query_dtype: torch.dtype = torch.bfloat16,
        kv_dtype: torch.dtype = torch.bfloat16,
        index_dtype: torch.dtype = torch.bfloat16,
        kernel: str = "auto",
        head_dim: int = 128,
    ) -> None:
        config = config or MsaConfig()
        device = torch.device(device)
        need(len(new_tokens) == len(lengths) > 0, "new_tokens", f"{len(new_tokens)} for {len(lengths)} lengths")
        for r, (count, length) in enumerate(zip(new_tokens, lengths, strict=True)):
            need(1 <= count <= length, f"new_tokens[{r}]", f"is {count}, it must be from 1 to the length, {length}")
        need(128 % groups == 0, "groups", f"is {groups}, it must divide 128")
        self.new_tokens, self.lengths, self.config, self.groups = new_tokens, lengths, config, groups
        rows = sum(new_tokens)
        positions = torch.cat([torch.arange(n - c, n) for c, n in zip(new_tokens, lengths, strict=True)])
        self.row_tokens = (positions + 1).to(torch.int32).to(device)
        request = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(new_tokens))
        self.row_request = request.to(torch.int32).to(device)
        shape = DecodeShape(
            rows,
            groups,
            heads,
            max_tokens=max(lengths),
            query_dtype=query_dtype,
            kv_dtype=kv_dtype,
            index_dtype=index_dtype,
            head_dim=head_dim,
            lengths_per_row=True,
            config=config,
        )
        self.shape = shape
        # Attention alone: the index keys' type is no matter of this runner.
        self.choice, self.runner = dispatch.make(dataclasses.replace(shape, index_dtype=query_dtype), device, kernel)
        self.selector = None
        if self.choice.kernel in ("sm90", "triton"):
            from engine.msa.kernels.triton_extend import TritonExtendSelect

            self.selector = TritonExtendSelect(new_tokens, lengths, groups, config, device)
        self.blocks = torch.empty(rows, groups, config.topk_blocks, dtype=torch.int32, device=device)

    def row_table(self, table: PageTable) -> PageTable:
        """The page table by query row instead of by request."""
        rows = self.row_request if table.rows is None else table.rows[self.row_request.long()].contiguous()
        return PageTable(table.table, rows, table.step, table.shift)

    def select(self, index_q: Tensor, index_k: Tensor, table: PageTable, *, out: Tensor) -> Tensor:
        """The choice of every new token and group, int32 [T, G, K]."""
        if self.selector is not None:
            self.selector.run(index_q, index_k, table, self.row_tokens, out)
            return out
        first = 0
        pages = PageTable(table.pages(len(self.lengths)))
        for r, (count, length) in enumerate(zip(self.new_tokens, self.lengths, strict=True)):
            rows = slice(first, first + count)
            one = PageTable(pages.table[r : r + 1])
            scores = paged_block_scores(
                index_q[rows], index_k, one, torch.tensor([length], device=index_q.device), count
            )
            out[rows] = reference.choose_blocks(scores, self.row_tokens[rows].long() - 1, self.config)
            first += count
        return out

    def extend(
        self, q: Tensor, index_q: Tensor, k: Tensor, v: Tensor, index_k: Tensor, table: PageTable, *, out: Tensor,
        scale: float | None = None, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Choice and attention. `blocks`, when given, receives the choice."""
        chosen = self.select(index_q, index_k, table, out=self.blocks if blocks is None else blocks)
        scale = self.shape.head_dim**-0.5 if scale is None else scale
        self.runner.attend(
            q, k, v, chosen, self.row_table(table), self.row_tokens, out, scale=scale, k_scale=k_scale, v_scale=v_scale, lse=lse
        )  # fmt: skip
        return out


plan_extend = ExtendPlan

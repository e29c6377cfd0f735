"""What an MSA kernel is given: where a request's pages are, and the shape of the work. Tensors only, no kernels.

Keys and values are 4-d views [pages, 128, groups, head_dim] with any strides, so every layout in use fits without a copy:
  separate pools of slots [slots, groups, D]   ->  `pages_of_slots(k)`
  interleaved [pages, groups, 128, 2 D] (K|V)  ->  `interleaved(kv)`
Index keys are [pages, 128, D], one key per token shared by all groups; a page of them is contiguous."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.msa.config import MsaConfig

INTEGERS = (torch.int32, torch.int64)


class MsaArgumentError(ValueError):
    """An operator was called with something it does not take: names the argument, what it is, what it must be."""


def need(condition: bool, argument: str, what: str) -> None:
    if not condition:
        raise MsaArgumentError(f"{argument}: {what}")


@dataclass(frozen=True)
class PageTable:
    """Block b of request r is page  table[rows[r], b * step] >> shift  (rows None: row r).

    `PageTable(page_table)` for tables of pages; `PageTable.of_tokens(req_to_token, req_pool_indices)` for tables that
    hold the slot of every token, with pages of 128 slots."""

    table: Tensor  # int32 [rows, columns], columns contiguous
    rows: Tensor | None = None  # int32 or int64 [requests]
    step: int = 1
    shift: int = 0

    def __post_init__(self) -> None:
        need(self.table.dtype == torch.int32, "table", f"dtype is {self.table.dtype}, it must be torch.int32")
        need(self.table.dim() == 2 and self.table.stride(1) == 1, "table", "must be 2-d with contiguous rows")
        if self.rows is not None:
            need(self.rows.dtype in INTEGERS, "rows", f"dtype is {self.rows.dtype}, it must be int32 or int64")
            need(self.rows.is_contiguous(), "rows", "must be contiguous")

    @classmethod
    def of_tokens(cls, req_to_token: Tensor, rows: Tensor | None = None, block_size: int = 128) -> PageTable:
        return cls(req_to_token, rows, step=block_size, shift=block_size.bit_length() - 1)

    @property
    def max_blocks(self) -> int:
        return -(-self.table.shape[1] // self.step)

    def pages(self, requests: int) -> Tensor:
        """The plain int32 [requests, max_blocks] page table (allocates; for the reference and for tests)."""
        rows = self.table[:requests] if self.rows is None else self.table[self.rows.long()]
        return (rows[:, :: self.step] >> self.shift).contiguous()


@dataclass(frozen=True)
class DecodeShape:
    """The work of one decode step on one device: everything a plan depends on, nothing that changes between replays."""

    requests: int
    groups: int  # KV heads = index heads on this device
    heads: int  # query heads per group
    queries: int = 1  # query rows per request (speculative verify), consecutive
    max_tokens: int = 1 << 20
    query_dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype = torch.bfloat16
    index_dtype: torch.dtype = torch.bfloat16
    head_dim: int = 128
    lengths_per_row: bool = False  # lengths has one entry per query row, not per request
    config: MsaConfig = field(default_factory=MsaConfig)

    def __post_init__(self) -> None:
        for name in ("requests", "groups", "heads", "queries", "max_tokens", "head_dim"):
            need(getattr(self, name) >= 1, name, f"is {getattr(self, name)}, it must be at least 1")

    @property
    def rows(self) -> int:
        return self.requests * self.queries


@dataclass(frozen=True)
class PrefillBatch:
    """New tokens of several requests, packed, each behind its own prefix: what a prefill plan depends on.

    new_tokens, lengths: per request, tokens of this batch and tokens of the sequence after them."""

    new_tokens: tuple[int, ...]
    lengths: tuple[int, ...]
    groups: int  # KV heads = index heads on this device
    heads: int  # query heads per group
    query_dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype = torch.bfloat16
    index_dtype: torch.dtype = torch.bfloat16
    head_dim: int = 128
    config: MsaConfig = field(default_factory=MsaConfig)

    def __post_init__(self) -> None:
        new, lengths = self.new_tokens, self.lengths
        need(len(new) == len(lengths) > 0, "new_tokens", f"{len(new)} for {len(lengths)} lengths")
        for r, (count, length) in enumerate(zip(new, lengths, strict=True)):
            need(1 <= count <= length, f"new_tokens[{r}]", f"is {count}, it must be from 1 to the length, {length}")
        for name in ("groups", "heads", "head_dim"):
            need(getattr(self, name) >= 1, name, f"is {getattr(self, name)}, it must be at least 1")

    @property
    def rows(self) -> int:
        return sum(self.new_tokens)

    @property
    def max_tokens(self) -> int:
        return max(self.lengths)

    def row_request(self, device: torch.device) -> Tensor:
        """int32 [rows]: whose token each row is."""
        index = torch.arange(len(self.lengths), dtype=torch.int32)
        return torch.repeat_interleave(index, torch.tensor(self.new_tokens)).to(device)

    def row_tokens(self, device: torch.device) -> Tensor:
        """int32 [rows]: tokens each row sees, its position + 1."""
        parts = [torch.arange(n - c + 1, n + 1) for c, n in zip(self.new_tokens, self.lengths, strict=True)]
        return torch.cat(parts).to(torch.int32).to(device)

    def by_row(self) -> DecodeShape:
        """The same attention as single rows, for the decode kernels. They choose nothing here."""
        return DecodeShape(
            self.rows, self.groups, self.heads, 1, self.max_tokens, self.query_dtype, self.kv_dtype, self.query_dtype,
            self.head_dim, lengths_per_row=True, config=self.config,
        )  # fmt: skip


def pages_of_slots(slots: Tensor, block_size: int = 128) -> Tensor:
    """[slots, groups, D] (or [slots, 1, D] index keys) -> [slots / 128, 128, groups, D], no copy."""
    need(slots.dim() == 3, "slots", f"has {slots.dim()} dimensions, it must be [slots, groups, D]")
    whole = slots.shape[0] // block_size * block_size
    return slots[:whole].unflatten(0, (-1, block_size))


def interleaved(kv: Tensor) -> tuple[Tensor, Tensor]:
    """[pages, groups, 128, 2 D] -> key and value views [pages, 128, groups, D], no copy."""
    need(
        kv.dim() == 4 and kv.shape[3] % 2 == 0,
        "kv",
        f"shape is {tuple(kv.shape)}, it must be [pages, groups, 128, 2 D]",
    )
    dim = kv.shape[3] // 2
    return kv[..., :dim].transpose(1, 2), kv[..., dim:].transpose(1, 2)

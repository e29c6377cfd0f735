"""Block-sparse attention of decode steps: the public operators.

Letters: R requests, n query rows per request (1, or up to 8 in speculative verify), T = R n rows, G groups = KV heads =
index heads here, H query heads per group, D = 128, K chosen blocks, P pages of 128 tokens.

    plan = plan_decode(DecodeShape(requests=R, groups=G, heads=H, ...), device)      # once per shape: allocates, compiles
    plan.decode(q, index_q, k, v, index_k, table, lengths, out=out)                  # may be captured in a CUDA graph

`decode` = `select` (index scores, maximum per block, own block forced, best K per group) + `attend` (split attention over
the chosen blocks, merged by log-sum-exp). Every call writes into tensors that the caller owns; the kernels neither
allocate nor synchronise, and their grids depend on the plan's shape only, never on lengths.

  q        [T, G H, D] bf16 or fp16        index_q [T, G, D] same          lengths int32 or int64 [R] (or [T], see DecodeShape):
  k, v     [P, 128, G, D] views (layouts.py): q's dtype or e4m3            tokens after the request's last query row; row j
  index_k  [P, 128, D]: q's dtype or e4m3                                  sees lengths - (n - 1 - j) of them
  table    PageTable                       blocks int32 [T, G, K], any strides but the last: logical ids ascending, -1 behind
The kernel launched just before a step must not be the one that writes `table` or `lengths`: on Hopper they are read while it
still ends (sm90.Tuning.early); anything launched before that is fine. Rows with length 0 get zeros.
The functions below plan by themselves and keep plans per shape; servers hold their own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from engine.msa import dispatch
from engine.msa.config import MsaConfig
from engine.msa.layouts import INTEGERS, DecodeShape, PageTable, need

M3 = MsaConfig()


class DecodePlan:
    """One shape on one device with its kernel and workspace. Not for two streams at once: the workspace is its own."""

    def __init__(self, shape: DecodeShape, device: torch.device, kernel: str = "auto") -> None:
        self.shape, self.device = shape, device
        self.choice, self.runner = dispatch.make(shape, device, kernel)

    def select(self, index_q: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor, *, out: Tensor) -> Tensor:
        """Writes the chosen blocks to `out` and returns it."""
        self._check_index(index_q, index_k)
        self._check_common(table, lengths, out)
        self.runner.select(index_q, index_k, table, lengths, out)
        return out

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, lengths: Tensor, *, out: Tensor,
        scale: float | None = None, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attention of every row to the blocks given for it (any order; -1 and ids after the row are skipped)."""
        self._check_attention(q, k, v, out, lse)
        self._check_common(table, lengths, blocks)
        self.runner.attend(
            q, k, v, blocks, table, lengths, out, scale=self._scale(scale), k_scale=k_scale, v_scale=v_scale, lse=lse
        )
        return out

    def decode(
        self, q: Tensor, index_q: Tensor, k: Tensor, v: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor, *,
        out: Tensor, scale: float | None = None, k_scale: float = 1.0, v_scale: float = 1.0, lse: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The whole step. `blocks`, when given, receives the choice."""
        self._check_index(index_q, index_k)
        self._check_attention(q, k, v, out, lse)
        self._check_common(table, lengths, blocks)
        self.runner.decode(
            q, index_q, k, v, index_k, table, lengths, out,
            scale=self._scale(scale), k_scale=k_scale, v_scale=v_scale, lse=lse, blocks=blocks,
        )  # fmt: skip
        return out

    run = decode

    def _scale(self, scale: float | None) -> float:
        return self.shape.head_dim**-0.5 if scale is None else scale

    def _check_index(self, index_q: Tensor, index_k: Tensor) -> None:
        s = self.shape
        _same(index_q, "index_q", (s.rows, s.groups, s.head_dim), s.query_dtype)
        need(index_q.stride(2) == 1, "index_q", "the last dimension must be contiguous")
        _same(index_k, "index_k", (None, s.config.block_size, s.head_dim), s.index_dtype)
        need(
            index_k.stride()[1:] == (s.head_dim, 1),
            "index_k",
            f"strides are {index_k.stride()}, a page must be contiguous",
        )

    def _check_attention(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        s = self.shape
        for name, tensor in (("q", q), ("out", out)):
            _same(tensor, name, (s.rows, s.groups * s.heads, s.head_dim), s.query_dtype)
        for name, tensor in (("k", k), ("v", v)):
            _same(tensor, name, (None, s.config.block_size, s.groups, s.head_dim), s.kv_dtype)
            aligned = all(stride * tensor.element_size() % 16 == 0 for stride in tensor.stride()[:3])
            need(aligned and tensor.data_ptr() % 16 == 0, name, "rows must begin at multiples of 16 bytes")
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out)):
            need(tensor.stride(-1) == 1, name, "the last dimension must be contiguous")
        if lse is not None:
            _same(lse, "lse", (s.rows, s.groups * s.heads), torch.float32)
            need(lse.is_contiguous(), "lse", "must be contiguous")

    def _check_common(self, table: PageTable, lengths: Tensor, blocks: Tensor | None) -> None:
        s = self.shape
        need(lengths.dtype in INTEGERS, "lengths", f"dtype is {lengths.dtype}, it must be int32 or int64")
        want = s.rows if s.lengths_per_row else s.requests
        need(lengths.shape == (want,), "lengths", f"shape is {tuple(lengths.shape)}, the plan is for ({want},)")
        need(lengths.is_contiguous(), "lengths", "must be contiguous")
        rows = table.table.shape[0] if table.rows is None else table.rows.shape[0]
        need(rows >= s.requests, "table", f"has {rows} rows for {s.requests} requests")
        need(table.max_blocks * s.config.block_size >= 1, "table", "has no columns")
        if blocks is not None:
            _same(blocks, "blocks", (s.rows, s.groups, s.config.topk_blocks), torch.int32)
            need(blocks.stride(-1) == 1, "blocks", "the last dimension must be contiguous")


def _same(tensor: Tensor, name: str, shape: tuple[int | None, ...], dtype: torch.dtype) -> None:
    got = tuple(tensor.shape)
    fits = len(got) == len(shape) and all(w is None or w == g for w, g in zip(shape, got, strict=True))
    need(
        fits,
        name,
        f"shape is {got}, the plan is for {tuple('any' if w is None else w for w in shape)}".replace("'", ""),
    )
    need(tensor.dtype == dtype, name, f"dtype is {tensor.dtype}, the plan is for {dtype}")


def plan_decode(shape: DecodeShape, device: torch.device | str, kernel: str = "auto") -> DecodePlan:
    """Plans a shape: picks the kernel (dispatch.py), compiles it if need be, takes the workspace."""
    return DecodePlan(shape, torch.device(device), kernel)


_kept = lru_cache(maxsize=64)(plan_decode)


def _shape(
    index_q: Tensor, queries: int, heads: int, config: MsaConfig, table: PageTable, **dtypes: Any
) -> DecodeShape:
    rows, groups, dim = index_q.shape
    need(rows % queries == 0, "queries", f"{queries} rows per request do not divide {rows} rows")
    tokens = table.max_blocks * config.block_size
    return DecodeShape(
        rows // queries, groups, heads, queries, tokens, index_q.dtype, head_dim=dim, config=config, **dtypes
    )


def select_blocks(
    index_q: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor, config: MsaConfig = M3, *,
    queries: int = 1, kernel: str = "auto", out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Chosen blocks int32 [T, G, K] of every query row and group."""
    shape = _shape(index_q, queries, 1, config, table, kv_dtype=index_q.dtype, index_dtype=index_k.dtype)
    if out is None:
        out = torch.empty(shape.rows, shape.groups, config.topk_blocks, dtype=torch.int32, device=index_q.device)
    return _kept(shape, index_q.device, kernel).select(index_q, index_k, table, lengths, out=out)


def paged_decode(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, table: PageTable, lengths: Tensor, config: MsaConfig = M3, *,
    queries: int = 1, scale: float | None = None, k_scale: float = 1.0, v_scale: float = 1.0, kernel: str = "auto",
    out: Tensor | None = None, lse: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of q [T, G H, D] to the given blocks [T, G, K] of its request."""
    groups = k.shape[2]
    shape = _shape(
        q[:, :: q.shape[1] // groups],
        queries,
        q.shape[1] // groups,
        config,
        table,
        kv_dtype=k.dtype,
        index_dtype=q.dtype,
    )
    out = torch.empty_like(q) if out is None else out
    return _kept(shape, q.device, kernel).attend(
        q, k, v, blocks, table, lengths, out=out, scale=scale, k_scale=k_scale, v_scale=v_scale, lse=lse
    )


def msa_decode(
    q: Tensor, index_q: Tensor, k: Tensor, v: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor,
    config: MsaConfig = M3, *, queries: int = 1, scale: float | None = None, k_scale: float = 1.0,
    v_scale: float = 1.0, kernel: str = "auto", out: Tensor | None = None, lse: Tensor | None = None,
    blocks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`select_blocks` and `paged_decode` in one step."""
    heads = q.shape[1] // index_q.shape[1]
    shape = _shape(index_q, queries, heads, config, table, kv_dtype=k.dtype, index_dtype=index_k.dtype)
    out = torch.empty_like(q) if out is None else out
    return _kept(shape, q.device, kernel).decode(
        q, index_q, k, v, index_k, table, lengths,
        out=out, scale=scale, k_scale=k_scale, v_scale=v_scale, lse=lse, blocks=blocks,
    )  # fmt: skip


def selected_page_table(
    blocks: Tensor, table: PageTable, lengths: Tensor, *, queries: int = 1, block_size: int = 128, heads_in_pages: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """For paged attention kernels that know nothing of MSA: (row, group) becomes the batch.

    blocks [T, G, K] as chosen (ascending, so that the own block, the only partial one, is the last). Returns pages
    int32 [T G, K] (0 behind the last) and the tokens they hold, int32 [T G]. `heads_in_pages`: page ids are
    page * G + group, for a cache [P, G, 128, D] seen as [P G, 1, 128, D]. No synchronisation."""
    rows, groups, topk = blocks.shape
    request = torch.arange(rows, device=blocks.device) // queries
    entry = request if table.rows is None else table.rows.long()[request]
    ids = blocks.clamp(min=0).long().flatten(1)
    pages = (table.table[entry[:, None], ids * table.step] >> table.shift).view(rows, groups, topk)
    if heads_in_pages:
        pages = pages * groups + torch.arange(groups, device=blocks.device, dtype=torch.int32)[None, :, None]
    pages = torch.where(blocks >= 0, pages, 0)
    back = queries - 1 - torch.arange(rows, device=blocks.device) % queries
    row_tokens = lengths.long()[request] - back
    count = (blocks >= 0).sum(-1)
    held = (count - 1) * block_size + ((row_tokens - 1) % block_size + 1)[:, None]
    held = torch.where((count > 0) & (row_tokens > 0)[:, None], held, 0)
    return pages.view(rows * groups, topk), held.to(torch.int32).view(-1)

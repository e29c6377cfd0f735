"""The tensors behind the pages: K, V and index keys of every layer, in pages of one block.

Stored head-major, [P, G, B, D], so that one head's block is one run of memory; `as_pages` shows the [P, B, G, D] view
that kernels and the reference take. Memory is touched only as pages are first used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token costs. `index_dims` has one entry per layer: the index head dim, or 0 for a dense layer."""

    kv_heads: int
    head_dim: int
    index_dims: tuple[int, ...]
    page_size: int

    def page_bytes(self, dtype: torch.dtype) -> int:
        per_token = sum(2 * self.kv_heads * self.head_dim + index for index in self.index_dims)
        return per_token * self.page_size * dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerPages:
    k: Tensor
    """[P, G, B, D]"""
    v: Tensor
    index_k: Tensor | None
    """[P, B, Di], None in a dense layer."""

    def write(self, pages: Tensor, offsets: Tensor, k: Tensor, v: Tensor, index_k: Tensor | None) -> None:
        """Stores tokens t at (pages[t], offsets[t]). k and v [T, G, D], index_k [T, Di]."""
        as_pages(self.k)[pages, offsets] = k
        as_pages(self.v)[pages, offsets] = v
        if self.index_k is not None and index_k is not None:
            self.index_k[pages, offsets] = index_k


def as_pages(stored: Tensor) -> Tensor:
    """[P, G, B, D] storage as [P, B, G, D], no copy."""
    return stored.permute(0, 2, 1, 3)


def allocate(shape: KvShape, n_pages: int, dtype: torch.dtype, device: torch.device) -> list[LayerPages]:
    def zeros(*size: int) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    return [
        LayerPages(
            zeros(n_pages, shape.kv_heads, shape.page_size, shape.head_dim),
            zeros(n_pages, shape.kv_heads, shape.page_size, shape.head_dim),
            zeros(n_pages, shape.page_size, index) if index else None,
        )
        for index in shape.index_dims
    ]

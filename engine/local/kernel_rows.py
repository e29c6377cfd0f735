"""Decoding rows of a step as the kernels of `engine.msa` take them. Prefill chunks stay with torch (attention.py).

Kernels are planned per shape, so the number of rows and the width of the page table are rounded up to powers of two:
rows of length 0 are ignored, and table entries behind a row's length are never read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.local.kv_storage import KvShape, LayerPages, as_pages
from engine.msa.config import MsaConfig

KERNEL_WIDTH = 128
"""Block size and head dims that the fast kernels are built for."""


def pick_kernel(
    wanted: str, shape: KvShape, heads: int, config: MsaConfig, dtype: torch.dtype, device: torch.device
) -> str | None:
    """The kernel name to ask engine.msa for, or None for torch. `heads`: query heads per group.

    Raises MsaArgumentError (a ValueError) when a kernel asked for by name does not exist or cannot do the work."""
    if wanted == "torch":
        return None
    if wanted == "auto":
        sizes = {shape.page_size, shape.head_dim, *(index for index in shape.index_dims if index)}
        fits = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and sizes == {KERNEL_WIDTH}
        return "auto" if fits else None
    from engine.msa.dispatch import choose
    from engine.msa.layouts import DecodeShape

    work = DecodeShape(1, shape.kv_heads, heads, 1, KERNEL_WIDTH, dtype, dtype, dtype, shape.head_dim, config=config)
    return choose(work, device, wanted).kernel


@dataclass(frozen=True, slots=True)
class KernelRows:
    kernel: str
    table: Tensor
    """int32 [rows, blocks], both powers of two."""
    lengths: Tensor
    """int32 [rows], the new token included; 0 for rows that only fill up."""

    @classmethod
    def of(cls, kernel: str, tables: Tensor, positions: Tensor) -> KernelRows:
        """tables int64 [n, blocks], positions int64 [n] of the new tokens."""
        rows, blocks = (1 << (size - 1).bit_length() for size in tables.shape)
        table = F.pad(tables.to(torch.int32), (0, blocks - tables.shape[1], 0, rows - tables.shape[0]))
        return cls(kernel, table, F.pad((positions + 1).to(torch.int32), (0, rows - len(positions))))

    def decode(self, q: Tensor, index_q: Tensor, layer: LayerPages, config: MsaConfig) -> Tensor:
        """q [n, Hq, D], index_q [n, G, Di] -> [n, Hq, D]."""
        from engine.msa.layouts import PageTable
        from engine.msa.ops import msa_decode

        assert layer.index_k is not None
        spare = (0, 0, 0, 0, 0, len(self.lengths) - len(q))
        out = msa_decode(
            F.pad(q, spare),
            F.pad(index_q, spare),
            as_pages(layer.k),
            as_pages(layer.v),
            layer.index_k,
            PageTable(self.table),
            self.lengths,
            config,
            kernel=self.kernel,
        )
        return out[: len(q)]

"""How far a kernel may be from the fp32 reference, by dtype. The only place with these numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    output: float  # ||out - ref|| / ||ref|| of the attention output
    lse: float  # absolute, natural log
    score: float  # absolute, of an index score: how much better an unchosen block may look to the reference


TOLERANCE = {
    torch.float32: Tolerance(1e-5, 1e-4, 1e-4),
    torch.float16: Tolerance(1e-3, 1e-3, 1e-3),
    torch.bfloat16: Tolerance(6e-3, 2e-3, 1e-3),
    torch.float8_e4m3fn: Tolerance(6e-3, 2e-3, 1e-3),
}
"""bf16: products are exact in fp32, so scores differ only by the order of sums; outputs by one rounding of the softmax
weights and one of the result. fp8 keys and values are widened exactly, so they need no more than the query's type."""

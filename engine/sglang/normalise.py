"""Picture rows as they travel (uint8) to what the vision tower takes, on the tower's device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from engine.contract.pixels import normalisation_table

PATCH = 14 * 14
CHANNELS = 3


@lru_cache(maxsize=8)
def _table(device: torch.device) -> Tensor:
    return torch.from_numpy(normalisation_table()).to(device)


def normalised(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [n, 588] (channel, y, x), one frame that stands for two, or [n, 1176] (channel, time, y, x) ->
    [n, 1176] of `dtype`: the reference processor's float32 values, then the cast."""
    frames = rows.shape[1] // (CHANNELS * PATCH)
    table = _table(rows.device)
    split = rows.unflatten(1, (CHANNELS, frames * PATCH))
    values = torch.stack([table[c][split[:, c].int()] for c in range(CHANNELS)], 1).to(dtype)
    if frames == 1:
        values = values.unsqueeze(2).expand(-1, -1, 2, -1)
    return values.reshape(rows.shape[0], 2 * CHANNELS * PATCH)

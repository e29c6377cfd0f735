"""uint8 rows become the reference processor's values, one frame standing for two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.contract.pixels import normalisation_table
from engine.sglang.normalise import normalised


@pytest.mark.parametrize("frames", [1, 2])
def test_each_byte_becomes_its_channels_value(frames: int) -> None:
    rows = np.random.default_rng(frames).integers(0, 256, (5, 3, frames, 196)).astype(np.uint8)
    table = normalisation_table()
    want = np.stack([table[c][rows[:, c]] for c in range(3)], 1)
    want = np.broadcast_to(want, (5, 3, 2, 196)) if frames == 1 else want
    got = normalised(torch.from_numpy(rows.reshape(5, -1)), torch.float32)
    assert torch.equal(got, torch.from_numpy(want.reshape(5, 1176).copy()))


def test_the_cast_comes_last() -> None:
    rows = torch.arange(588, dtype=torch.int64).remainder(256).to(torch.uint8)[None]
    assert torch.equal(normalised(rows, torch.bfloat16), normalised(rows, torch.float32).to(torch.bfloat16))

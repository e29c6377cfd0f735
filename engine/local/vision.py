"""Patch rows to embeddings: normalisation exactly as the reference processor's, then transformers' tower and projector.

A segment is what attends to itself: an image, or up to 4 temporal patches of a video. Segments are computed one at a
time, when a prompt chunk reaches them, so a long video costs each step no more than it needs. Results are kept,
bounded, until the prompts that use them are through.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor

from engine.contract import pixels
from engine.local.model import Model
from engine.wire import MERGE_AREA, Item

SEGMENT_PATCHES = 4
"""Temporal patches in one segment of a video (8 frames)."""
PIXELS_PER_CHANNEL = 14 * 14


def normalisation_table() -> Tensor:
    """float32 [3, 256], see engine/contract/pixels.py."""
    return torch.from_numpy(pixels.normalisation_table())


def pixel_rows(item: Item, data: bytes | memoryview, first: int, last: int, table: Tensor) -> Tensor:
    """float32 [n, 1176] (channel, time, y, x) of temporal patches first..last of an item."""
    _, h, w = item.grid
    rows, width = item.shape
    dtype = {"u8": np.uint8, "f32": np.dtype("<f4"), "bf16": np.dtype("<u2")}[item.rows]
    raw = np.frombuffer(data, dtype=dtype).reshape(rows, width)[first * h * w : last * h * w]
    if item.rows == "bf16":
        return torch.from_numpy((raw.astype(np.uint32) << 16).view(np.float32))
    if item.rows == "f32":
        return torch.from_numpy(raw.astype(np.float32))
    levels = torch.from_numpy(raw.copy()).long()
    channel = torch.arange(3).repeat_interleave(width // 3)
    values = table.flatten()[levels + channel * 256]
    if item.t_dup:
        values = values.unflatten(1, (3, 1, PIXELS_PER_CHANNEL)).expand(-1, -1, 2, -1).flatten(1)
    return values


class FeatureCache:
    """Embeddings by (cache salt, item hash, segment), least recently used out first, bounded in bytes.

    The salt is part of the key so that the time to a first token tells nothing about other tenants' pictures."""

    def __init__(self, model: Model, max_bytes: int) -> None:
        self._model = model
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, str, int], Tensor] = OrderedDict()
        self._bytes = 0
        self._table = normalisation_table()
        self.computed = 0
        """Segments that went through the tower."""

    def segment(self, item: Item, index: int, data: bytes | memoryview, salt: str = "") -> Tensor:
        """[tokens, H] of one segment of `item`, computed unless kept."""
        key = (salt, item.hash, index)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        t, h, w = item.grid
        first = index * SEGMENT_PATCHES
        last = min(t, first + SEGMENT_PATCHES)
        pixels = pixel_rows(item, data, first, last, self._table).to(self._model.device)
        grid = torch.tensor([[last - first, h, w]], device=self._model.device)
        out = self._model.net.model.get_image_features(pixels.to(self._model.dtype), grid, return_dict=True)
        values = out.pooler_output[0]
        self.computed += 1
        self._kept[key] = values
        self._bytes += values.nbytes
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return values

    def rows(
        self, item: Item, data: bytes | memoryview, start: int, stop: int, salt: str = ""
    ) -> list[tuple[int, Tensor]]:
        """Embeddings of the item's tokens that lie at prompt positions [start, stop): (position, [n, H]) runs."""
        per_patch = item.grid[1] * item.grid[2] // MERGE_AREA
        runs = []
        for patch, (offset, length) in enumerate(item.ranges):
            low, high = max(start, offset), min(stop, offset + length)
            if low >= high:
                continue
            values = self.segment(item, patch // SEGMENT_PATCHES, data, salt)
            at = patch % SEGMENT_PATCHES * per_patch - offset
            runs.append((low, values[at + low : at + high]))
        return runs

"""Puts the media's real number of placeholders into a rendered prompt, and says where they are.

image: start, n x image, end.    video, per temporal patch: [timestamp text], start, n x video, end;  n = h*w/4.

The timestamp is ordinary text. The first one touches the text before the video, so that run is encoded anew together
with it: the ids are those of the reference, which expands before it tokenizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.wire import MERGE_AREA, Item
from gateway.media.types import PreparedMedia
from gateway.prompt import markers
from gateway.prompt.builder import RenderedPrompt
from gateway.prompt.checkpoint import Checkpoint

_PIECE: Final = 1 << 16


def expand(
    rendered: RenderedPrompt, media: Sequence[PreparedMedia], checkpoint: Checkpoint
) -> tuple[NDArray[np.uint32], list[Item]]:
    """(ids uint32 [prompt_tokens], one Item per media in the same order). Raises ValueError when they do not fit: the
    caller has checked the request, so that is a fault of ours."""
    positions = rendered.media_positions
    if [k for _, k in positions] != [m.modality for m in media]:
        raise ValueError(f"{len(media)} media for {len(positions)} placeholders, or not of the same kinds")
    ids = as_array(rendered.ids)
    run_by_end = {run.end: run for run in rendered.runs} if any(m.timestamps for m in media) else {}
    out = _Builder()
    items: list[Item] = []
    done = 0
    for (position, kind), one in zip(positions, media, strict=True):
        t, h, w = one.grid
        per_patch = h * w // MERGE_AREA
        if one.tokens != t * per_patch or (kind == "image" and t != 1):
            raise ValueError(f"{kind} of grid {one.grid} says it has {one.tokens} tokens")
        token = checkpoint.image_token_id if kind == "image" else checkpoint.video_token_id
        times = one.timestamps if kind == "video" else None
        if times is not None and len(times) != t:
            raise ValueError(f"{len(times)} timestamps for {t} temporal patches")
        run = run_by_end.get(position) if times else None
        out.add(ids[done : position if run is None else run.start])
        ranges: list[tuple[int, int]] = []
        for k in range(t):
            if times:
                before = run.text if run and k == 0 else ""
                out.add(checkpoint.encode_plain(before + markers.TIMESTAMP.format(times[k])))
            out.add([checkpoint.vision_start_id])
            ranges.append((out.length, per_patch))
            out.add(np.full(per_patch, token, dtype=np.uint32))
            out.add([checkpoint.vision_end_id])
        items.append(Item(one.modality, one.hash, one.rows, one.t_dup, one.grid, tuple(ranges), one.data))
        done = position + 1
    out.add(ids[done:])
    return out.joined(), items


def as_array(ids: list[int] | NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Piece by piece: the conversion of a long list would keep other threads waiting for tens of milliseconds."""
    pieces = [np.asarray(ids[i : i + _PIECE], dtype=np.uint32) for i in range(0, len(ids), _PIECE)]
    return np.concatenate(pieces) if len(pieces) > 1 else np.asarray(ids, dtype=np.uint32)


class _Builder:
    def __init__(self) -> None:
        self._pieces: list[NDArray[np.uint32]] = []
        self.length = 0

    def add(self, ids: NDArray[np.uint32] | Sequence[int]) -> None:
        piece = np.asarray(ids, dtype=np.uint32)
        self._pieces.append(piece)
        self.length += len(piece)

    def joined(self) -> NDArray[np.uint32]:
        return np.concatenate(self._pieces) if self._pieces else np.empty(0, dtype=np.uint32)

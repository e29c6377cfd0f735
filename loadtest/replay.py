"""Recorded traffic, sent again at its own times: the Mooncake trace format and our own recording.

Mooncake (kvcache-ai/Mooncake): JSON lines {timestamp: ms, input_length, output_length, hash_ids: [id of each 512-token block]};
equal ids mean equal blocks, so the text of a block is a function of its id and prefix reuse is what it was.
Ours: the gateway's access log, JSON lines with time, prompt_tokens, completion_tokens and, with
`observability.record_blocks`, blocks; without them every prompt is new text. Other lines of the log are passed over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadtest.payloads.text import Calibration, TextSource

BLOCK_TOKENS = 512


class TraceError(ValueError):
    """The trace cannot be read; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded request. `at_s` counts from the trace's start."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def read_trace(path: Path, *, limit: int | None = None) -> list[Entry]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as e:
        raise TraceError(f"{path}: {e.strerror}") from None
    entries = (_entry(path, n, line) for n, line in enumerate(itertools.islice(lines, limit), 1) if line.strip())
    rows = [entry for entry in entries if entry is not None]
    if not rows:
        raise TraceError(f"{path}: no requests")
    rows.sort(key=lambda r: r.at_s)
    start = rows[0].at_s
    return [Entry(r.at_s - start, r.input_tokens, r.output_tokens, r.blocks) for r in rows]


def _entry(path: Path, number: int, line: bytes) -> Entry | None:
    """None for a line of the access log that is no generation."""
    where = f"{path.name}, line {number}"
    try:
        row = orjson.loads(line)
        if "hash_ids" in row:
            return Entry(
                row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"]), tuple(row["hash_ids"])
            )
        if "logger" in row and "prompt_tokens" not in row:
            return None
        ended = datetime.fromisoformat(row["time"]).timestamp()
        began = ended - float(row.get("duration_ms", 0)) / 1e3
        return Entry(began, int(row["prompt_tokens"]), int(row["completion_tokens"]), tuple(row.get("blocks", ())))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as e:
        raise TraceError(f"{where}: {type(e).__name__}: {e}; expected the Mooncake format or our access log") from None


class TraceBodies:
    """Request bodies of a trace. Block text is made from the block's id, once, and kept while it is likely to come again."""

    def __init__(self, model: str, seed: int, calibration: Calibration) -> None:
        self._model, self._seed, self._calibration = model, seed, calibration
        self._text = TextSource(seed)
        self._blocks: dict[int, str] = {}

    def _block(self, block: int) -> str:
        text = self._blocks.get(block)
        if text is None:
            rng = np.random.default_rng([self._seed, 3, block])
            text = self._text.words(rng, self._calibration.words(BLOCK_TOKENS))
            if len(self._blocks) > 65_536:
                self._blocks.clear()
            self._blocks[block] = text
        return text

    def body(self, index: int, entry: Entry) -> bytes:
        whole = entry.input_tokens // BLOCK_TOKENS
        parts = [self._block(b) for b in entry.blocks[:whole]]
        rest = entry.input_tokens - BLOCK_TOKENS * len(parts)
        if rest > 0:
            rng = np.random.default_rng([self._seed, 4, index])
            parts.append(self._text.words(rng, self._calibration.words(rest)))
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": " ".join(parts)}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max(1, entry.output_tokens),
            "ignore_eos": True,
        }
        return orjson.dumps(body)


def share(entries: list[Entry], worker: int, workers: int, speed: float) -> Iterator[tuple[int, float, Entry]]:
    """(index, offset in seconds, entry) of one worker's part; `speed` 2 plays twice as fast."""
    for index in range(worker, len(entries), workers):
        yield index, entries[index].at_s / speed, entries[index]

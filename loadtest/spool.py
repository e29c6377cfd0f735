"""Raw exchanges on disk: memory stays flat however long a run is. One file per worker, read back in any order.

A record: u32 length of a JSON head, the head, stamps (int64), ends (int64), raw bytes."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from loadtest.wire_client import Exchange


@dataclass(frozen=True, slots=True)
class Plan:
    """What was meant: which request this was and what it asked for."""

    worker: int
    session: int
    turn: int
    asked_output_tokens: int
    images: int
    videos: int
    request_bytes: int
    phase: str
    """ "warmup", "measure" or "cooldown"; only "measure" counts."""


class Spool:
    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)

    def add(self, plan: Plan, exchange: Exchange) -> None:
        head = orjson.dumps(
            {
                **asdict(plan),
                "due": exchange.due,
                "sent": exchange.sent,
                "end": exchange.end,
                "reused": exchange.reused,
                "error": exchange.error,
                "reads": len(exchange.stamps),
                "raw": len(exchange.raw),
            }
        )
        self._file.write(struct.pack("<I", len(head)) + head)
        self._file.write(exchange.stamps.tobytes())
        self._file.write(exchange.ends.tobytes())
        self._file.write(exchange.raw)

    def flush(self) -> None:
        """Hands what there is to the kernel: it survives this process, and the parent can read it while the run goes on."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(file: BinaryIO) -> Iterator[tuple[Plan, Exchange]]:
    """Records from the file's position on. Ends before a record that is not whole (its worker still writes it, or died) and
    leaves the position there, so that reading can go on later."""
    names = Plan.__dataclass_fields__
    while (head := _head(file)) is not None:
        stamps, ends, raw = (file.read(n) for n in (8 * head["reads"], 8 * head["reads"], head["raw"]))
        exchange = Exchange(
            head["due"], head["sent"], head["end"], head["reused"], array("q", stamps), array("q", ends),
            bytearray(raw), head["error"],
        )  # fmt: skip
        yield Plan(**{name: head[name] for name in names}), exchange


def skip(file: BinaryIO) -> int:
    """Passes over the whole records that are there; says how many."""
    passed = 0
    while (head := _head(file)) is not None:
        file.seek(16 * head["reads"] + head["raw"], os.SEEK_CUR)
        passed += 1
    return passed


def _head(file: BinaryIO) -> dict[str, Any] | None:
    """The next record's head, the position behind it; None, the position unchanged, when the record is not whole."""
    at, size = file.tell(), os.fstat(file.fileno()).st_size
    prefix = file.read(4)
    length = struct.unpack("<I", prefix)[0] if len(prefix) == 4 else size
    if at + 4 + length <= size:
        head: dict[str, Any] = orjson.loads(file.read(length))
        if file.tell() + 16 * head["reads"] + head["raw"] <= size:
            return head
    file.seek(at)
    return None

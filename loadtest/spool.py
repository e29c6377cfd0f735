"""Raw exchanges on disk: memory stays flat however long a run is. One file per worker, read back in any order.

A record: u32 length of a JSON head, the head, stamps (int64), ends (int64), raw bytes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

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

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[tuple[Plan, Exchange]]:
    names = Plan.__dataclass_fields__
    with path.open("rb") as f:
        while prefix := f.read(4):
            head = orjson.loads(f.read(struct.unpack("<I", prefix)[0]))
            stamps, ends = array("q"), array("q")
            stamps.frombytes(f.read(8 * head["reads"]))
            ends.frombytes(f.read(8 * head["reads"]))
            raw = bytearray(f.read(head["raw"]))
            exchange = Exchange(
                head["due"], head["sent"], head["end"], head["reused"], stamps, ends, raw, head["error"]
            )
            yield Plan(**{name: head[name] for name in names}), exchange

"""One JSON line per request in `usage-YYYY-MM-DD.jsonl` (UTC) in a folder; for pipelines that take files.

Several processes may append to one file: a batch is one write to a file opened for appending. A batch that went out only in
part (full disk) is finished on a line of its own: readers pass over the torn line.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson

from gateway.observability.ledger.sums import SUMS, LedgerError, LedgerRow, sums_of
from gateway.observability.usage import UsageRecord

MAX_PENDING_RECORDS: Final = 100_000
HOUSEKEEPING_S: Final = 3600
NAME: Final = re.compile(r"usage-(\d{4}-\d{2}-\d{2})\.jsonl")


class JsonLines:
    """A Sink (writer.py)."""

    def __init__(self, folder: Path, retention_days: int, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._retention_s = retention_days * 86400
        self._clock = clock
        self._pending: dict[str, list[bytes]] = {}
        self._count = 0
        self._torn: set[str] = set()
        self._housekeeping_at = 0.0

    def take(self, records: Sequence[UsageRecord]) -> int:
        room = MAX_PENDING_RECORDS - self._count
        for record in records[:room]:
            self._pending.setdefault(_day(record.at), []).append(_line(record))
        self._count += min(room, len(records))
        return max(0, len(records) - room)

    def write(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        written = 0
        for day in list(self._pending):
            written += self._append(day)
        if (now := self._clock()) >= self._housekeeping_at:
            for day, path in _files(self._folder):
                if day < _day(now - self._retention_s):
                    path.unlink(missing_ok=True)
            self._housekeeping_at = now + HOUSEKEEPING_S
        return written

    def close(self) -> None:
        """Nothing is held between writes."""

    def _append(self, day: str) -> int:
        lines = self._pending[day]
        start = b"\n" if day in self._torn else b""
        data = start + b"".join(lines)
        file = os.open(
            self._folder / f"usage-{day}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640
        )
        try:
            sent = os.write(file, data)
        finally:
            os.close(file)
        if sent == len(data):
            self._torn.discard(day)
            del self._pending[day]
            self._count -= len(lines)
            return len(lines)
        # A line without its end is whole: the next write begins with the newline that it lacks.
        whole, end = 0, len(start)
        while whole < len(lines) and end + len(lines[whole]) - 1 <= sent:
            end += len(lines[whole])
            whole += 1
        if sent and sent != end:
            self._torn.add(day)
        elif sent:
            self._torn.discard(day)
        del lines[:whole]
        self._count -= whole
        raise OSError(f"only {sent} of {len(data)} bytes went out")


def read_jsonl(path: Path, since: float, until: float) -> Iterator[LedgerRow]:
    """Rows of one file, or of all days in a folder, that end in [since, until). Lines that are no records are passed over.
    Raises LedgerError."""
    try:
        files = [p for _, p in _files(path)] if path.is_dir() else [path]
        for file in files:
            with file.open("rb") as lines:
                for line in lines:
                    row = _row(line)
                    if row is not None and since <= row.at < until:
                        yield row
    except OSError as e:
        raise LedgerError(f"the usage ledger {path} cannot be read: {e.strerror}") from None


def _files(folder: Path) -> list[tuple[str, Path]]:
    found = ((NAME.fullmatch(p.name), p) for p in folder.iterdir())
    return sorted((m[1], p) for m, p in found if m)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _line(record: UsageRecord) -> bytes:
    head = {
        "time": datetime.fromtimestamp(record.at, UTC).isoformat(timespec="milliseconds"),
        "request_id": record.request_id,
        "tenant": record.tenant,
        "model": record.model,
        "outcome": record.outcome,
    }
    sums = dict(zip(SUMS[1:], sums_of(record)[1:], strict=True))
    return orjson.dumps({**head, **sums, "seconds": round(record.seconds, 6)}) + b"\n"


def _row(line: bytes) -> LedgerRow | None:
    try:
        row = orjson.loads(line)
        at = datetime.fromisoformat(row["time"]).timestamp()
        sums = (1, *(row[name] + 0 for name in SUMS[1:]))
        return LedgerRow(at, str(row["tenant"]), str(row["model"]), str(row["outcome"]), sums)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None

"""Sums per minute, tenant, model and outcome in an SQLite file.

Several processes may write one file (WAL; a local disk, not NFS): a batch is one short transaction of additions. Minutes
older than two days become hours, rows older than the retention are removed, so the file's size is bounded by tenants x
models x outcomes. A row's `at` is the start of its minute or hour, seconds since 1970.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from gateway.observability.ledger.sums import SUMS, LedgerError, LedgerRow, sums_of
from gateway.observability.usage import UsageRecord

APPLICATION_ID: Final = 0x43544C4A  # "CTLJ"
VERSION: Final = 1
MAX_PENDING_ROWS: Final = 100_000
"""Minutes x tenants x models x outcomes kept while the disk fails: hours of a busy gateway."""
BUSY_TIMEOUT_S: Final = 5.0
MINUTES_KEPT_S: Final = 2 * 86400
HOUSEKEEPING_S: Final = 3600
KEY: Final = ("at", "tenant", "model", "outcome")

_SCHEMA: Final = f"""
create table if not exists usage (
  at integer not null, tenant text not null, model text not null, outcome text not null,
  {", ".join(f"{name} {'real' if name == 'seconds' else 'integer'} not null" for name in SUMS)},
  primary key ({", ".join(KEY)})
) without rowid
"""
_COLUMNS: Final = ", ".join((*KEY, *SUMS))
_ON_CONFLICT: Final = f"""on conflict ({", ".join(KEY)}) do update set
  {", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)}"""
# Names come from the tuples above, values are bound.
_ADD: Final = f"insert into usage ({_COLUMNS}) values ({', '.join('?' * (len(KEY) + len(SUMS)))}) {_ON_CONFLICT}"  # noqa: S608
_TO_HOURS: Final = f"""insert into usage ({_COLUMNS})
  select at / 3600 * 3600 as hour, tenant, model, outcome, {", ".join(f"sum({name})" for name in SUMS)}
  from usage where at < ? and at % 3600 != 0 group by hour, tenant, model, outcome {_ON_CONFLICT}"""  # noqa: S608

Key = tuple[int, str, str, str]


class SqliteSums:
    """A Sink (writer.py)."""

    def __init__(self, path: Path, retention_days: int, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._retention_s = retention_days * 86400
        self._clock = clock
        self._pending: dict[Key, list[float]] = {}
        self._pending_records = 0
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._housekeeping_at = 0.0

    def take(self, records: Sequence[UsageRecord]) -> int:
        dropped = 0
        for record in records:
            key = (int(record.at) // 60 * 60, record.tenant, record.model, record.outcome)
            row = self._pending.get(key)
            if row is None:
                if len(self._pending) >= MAX_PENDING_ROWS:
                    dropped += 1
                    continue
                row = self._pending[key] = [0] * len(SUMS)
            for i, value in enumerate(sums_of(record)):
                row[i] += value
            self._pending_records += 1
        return dropped

    def write(self) -> int:
        connection = self._open()
        try:
            if (now := self._clock()) >= self._housekeeping_at:
                self._tidy(connection, int(now))
                self._housekeeping_at = now + HOUSEKEEPING_S
            if self._pending:
                connection.execute("begin immediate")
                connection.executemany(_ADD, [(*key, *row) for key, row in self._pending.items()])
                connection.execute("commit")
        except sqlite3.Error:
            self.close()  # rolls back
            raise
        written, self._pending_records = self._pending_records, 0
        self._pending.clear()
        return written

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        """The connection, opened anew when the file was moved away or removed."""
        if self._connection is not None and self._file == _identity(self._path):
            return self._connection
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            _check(connection, self._path)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            connection.execute("begin immediate")
            connection.execute(_SCHEMA)
            connection.execute(f"pragma application_id = {APPLICATION_ID}")
            connection.execute(f"pragma user_version = {VERSION}")
            connection.execute("commit")
        except BaseException:
            connection.close()
            raise
        self._connection, self._file = connection, _identity(self._path)
        return connection

    def _tidy(self, connection: sqlite3.Connection, now: int) -> None:
        hours_before = (now - MINUTES_KEPT_S) // 3600 * 3600
        connection.execute("begin immediate")
        connection.execute(_TO_HOURS, (hours_before,))
        connection.execute("delete from usage where at < ? and at % 3600 != 0", (hours_before,))
        connection.execute("delete from usage where at < ?", (now - self._retention_s,))
        connection.execute("commit")


def read_sqlite(path: Path, since: float, until: float) -> Iterator[LedgerRow]:
    """Rows that begin in [since, until). Raises LedgerError."""
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        ) as connection:
            _check(connection, path)
            query = f"select {_COLUMNS} from usage where at >= ? and at < ? order by at"  # noqa: S608
            for at, tenant, model, outcome, *sums in connection.execute(query, (since, until)):
                yield LedgerRow(at, tenant, model, outcome, tuple(sums))
    except sqlite3.Error as e:
        raise LedgerError(f"the usage ledger {path} cannot be read: {e}") from None


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """A new file, or a ledger of this version. Raises sqlite3.DatabaseError."""
    [application] = connection.execute("pragma application_id").fetchone()
    [version] = connection.execute("pragma user_version").fetchone()
    [tables] = connection.execute("select count(*) from sqlite_master").fetchone()
    if application == APPLICATION_ID and version != VERSION:
        raise sqlite3.DatabaseError(
            f"{path.name} is a ledger of version {version}; this program writes version {VERSION}"
        )
    if application != APPLICATION_ID and (application or version or tables):
        raise sqlite3.DatabaseError(f"{path.name} is the database of another program")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

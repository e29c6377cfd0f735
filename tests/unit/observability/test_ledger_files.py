"""Both forms of the ledger hold what was recorded, within bounds, whatever the disk and other processes do."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.observability.ledger import jsonl, sqlite
from gateway.observability.ledger.jsonl import JsonLines
from gateway.observability.ledger.report import read
from gateway.observability.ledger.sqlite import SqliteSums
from gateway.observability.ledger.sums import SUMS, LedgerError
from tests.unit.observability.records import NOON, record

FOREVER = (0.0, 1e12)
FORMS = {"sqlite": SqliteSums, "jsonl": JsonLines}
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


def summed(path: Path, span: tuple[float, float] = FOREVER) -> dict[str, float]:
    rows = [row.sums for row in read(path, *span)]
    return dict(zip(SUMS, map(sum, zip(*rows, strict=True)), strict=True)) if rows else dict.fromkeys(SUMS, 0)


def test_what_is_taken_can_be_read_while_it_is_written(form: Any, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger"
    sink = form(path, 400, lambda: NOON)
    sink.take([record(images=2, videos=1, media_bytes=5000), record(NOON + 61, tenant="zoë", outcome="aborted")])
    assert sink.write() == 2
    assert sink.write() == 0
    sink.take([record(NOON + 62)])
    assert sink.write() == 1
    sums = summed(path)
    assert (sums["requests"], sums["input_tokens"], sums["cached_tokens"]) == (3, 300, 192)
    assert (sums["output_tokens"], sums["reasoning_tokens"], sums["seconds"]) == (60, 15, 4.5)
    assert (sums["images"], sums["videos"], sums["media_bytes"]) == (2, 1, 5000)
    assert {(r.tenant, r.outcome) for r in read(path, *FOREVER)} == {("acme", "ok"), ("zoë", "aborted")}
    assert summed(path, (NOON, NOON + 60))["requests"] == 1
    sink.close()


def test_old_records_are_removed(form: Any, tmp_path: Path) -> None:
    now = [NOON]
    sink = form(tmp_path / "ledger", 10, lambda: now[0])
    sink.take([record(), record(NOON + 5 * 86400)])
    sink.write()
    now[0] = NOON + 12 * 86400
    sink.take([record(now[0])])
    sink.write()
    sink.close()
    assert summed(tmp_path / "ledger")["requests"] == 2


def test_minutes_become_hours_and_nothing_is_lost(tmp_path: Path) -> None:
    now = [NOON]
    path = tmp_path / "usage.sqlite"
    sink = SqliteSums(path, 400, lambda: now[0])
    for minute in range(0, 150, 5):
        sink.take([record(NOON + minute * 60, outcome="ok" if minute % 2 else "failed")])
    sink.write()
    assert len(list(read(path, *FOREVER))) == 30
    now[0] = NOON + 3 * 86400
    for again in range(3):  # tidying what is tidy changes nothing
        now[0] += 3600 * again
        sink.write()
        rows = list(read(path, *FOREVER))
        assert {r.at for r in rows} == {NOON, NOON + 3600, NOON + 7200}
        assert len(rows) == 6
        assert summed(path)["requests"] == 30
    sink.close()


def test_pending_is_bounded_and_the_overflow_is_told(
    form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "MAX_PENDING_ROWS", 3)
    monkeypatch.setattr(jsonl, "MAX_PENDING_RECORDS", 3)
    sink = form(tmp_path / "ledger", 400, lambda: NOON)
    assert sink.take([record(NOON + 60 * i) for i in range(2)]) == 0
    assert sink.take([record(NOON + 60 * i) for i in range(2, 7)]) == 4
    assert sink.write() == 3
    assert sink.take([record(NOON + 60 * i) for i in range(2)]) == 0
    assert sink.write() == 2
    sink.close()


def test_a_failed_write_is_made_good(form: Any, tmp_path: Path) -> None:
    """A folder where the file should be, a file where the folder should be: then the mistake is mended."""
    path = tmp_path / "there" / "ledger"
    path.parent.write_text("a file where a folder is needed")
    sink = form(path, 400, lambda: NOON)
    sink.take([record()])
    for _ in range(3):
        with pytest.raises(OSError):
            sink.write()
    path.parent.unlink()
    sink.take([record()])
    assert sink.write() == 2
    assert summed(path)["requests"] == 2
    sink.close()


def test_a_file_that_was_moved_away_is_begun_anew(form: Any, tmp_path: Path) -> None:
    """Backup by `mv`, or an `rm`: writing on into the unlinked file would lose everything in silence."""
    path = tmp_path / "ledger"
    sink = form(path, 400, lambda: NOON)
    sink.take([record()])
    sink.write()
    for file in tmp_path.glob("ledger*"):
        file.rename(tmp_path / f"old-{file.name}")
    sink.take([record(), record()])
    sink.write()
    sink.close()
    assert summed(path)["requests"] == 2


def test_a_full_disk_tears_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever part of a batch goes out, every record is read once."""
    whole = len(jsonl._line(record()))
    really = os.write
    for part in (0, 1, whole - 1, whole, whole + 1, 2 * whole + 7, 3 * whole - 1):
        folder = tmp_path / str(part)
        sink = JsonLines(folder, 400, lambda: NOON)
        sink.take([record(), record(), record()])

        def short(file: int, data: bytes, part: int = part) -> int:
            return really(file, data[:part])

        monkeypatch.setattr(jsonl.os, "write", short)
        with pytest.raises(OSError):
            sink.write()
        monkeypatch.setattr(jsonl.os, "write", really)
        sink.take([record()])
        sink.write()
        assert summed(folder)["requests"] == 4, part


def test_a_full_disk_is_a_failure_like_any_other_for_sqlite(tmp_path: Path) -> None:
    """SQLite's own bound on pages stands in for the disk's."""
    path = tmp_path / "usage.sqlite"
    sink = SqliteSums(path, 400, lambda: NOON)
    sink.write()
    assert sink._connection is not None
    sink._connection.execute("pragma max_page_count = 4")
    sink.take([record(tenant=f"tenant-{i}" * 20) for i in range(500)])
    with pytest.raises(sqlite3.OperationalError, match="full"):
        sink.write()
    assert sink.write() == 500  # a new connection, without the bound
    assert summed(path)["requests"] == 500
    sink.close()


def _other_program(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("create table customers (name)")
    other.commit()
    other.close()


def _newer_version(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute(f"pragma application_id = {sqlite.APPLICATION_ID}")
    other.execute("pragma user_version = 99")
    other.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_other_program, "another program"),
        (_newer_version, "version 99"),
        (lambda path: path.write_bytes(b"no database at all" * 100), "not a database"),
    ],
)
def test_a_foreign_file_is_neither_written_nor_read(make: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    make(path)
    before = path.read_bytes()
    sink = SqliteSums(path, 400, lambda: NOON)
    sink.take([record()])
    with pytest.raises(sqlite3.DatabaseError, match=said):
        sink.write()
    assert path.read_bytes() == before
    with pytest.raises(LedgerError, match=said):
        list(read(path, *FOREVER))


WRITER = """
import sys
from pathlib import Path
from gateway.observability.ledger.{module} import {name}
from tests.unit.observability.records import NOON, record

sink = {name}(Path(sys.argv[1]), 400, lambda: NOON)
for i in range(int(sys.argv[2])):
    sink.take([record(NOON + i % 7, seconds=1.0)] * 3)
    while True:
        try:
            sink.write()
            break
        except Exception as e:
            print(e, file=sys.stderr)
    print(3 * (i + 1), flush=True)
"""


def _writer(form: Any, path: Path, batches: int) -> subprocess.Popen[str]:
    code = WRITER.format(module=form.__module__.rpartition(".")[2], name=form.__name__)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(batches)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_several_processes_share_one_ledger(form: Any, tmp_path: Path) -> None:
    processes = [_writer(form, tmp_path / "ledger", 40) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert summed(tmp_path / "ledger")["requests"] == 3 * 40 * 3


def test_a_killed_process_loses_at_most_its_last_batch(form: Any, tmp_path: Path) -> None:
    process = _writer(form, tmp_path / "ledger", 10**9)
    assert process.stdout is not None
    told = 0
    while told < 60:
        told = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    told = max([told, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
    process.stdout.close()
    process.wait(30)
    assert told <= summed(tmp_path / "ledger")["requests"] <= told + 3
    sink = form(tmp_path / "ledger", 400, lambda: NOON)
    sink.take([record()])
    assert sink.write() == 1, "the next process goes on"
    sink.close()


def test_lines_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path, 400, lambda: NOON)
    sink.take([record()])
    sink.write()
    [file] = tmp_path.glob("usage-2026-11-30.jsonl")
    torn = b'{"time":"2026-11-30T12:00:00+00:00","request_id":"r\n[]\nnull\n{}\n"\xff\n\n'
    strange = b'{"time":"2026-11-30","tenant":"a","model":"m","outcome":"ok","input_tokens":"x"}\n'
    file.write_bytes(torn + strange + file.read_bytes())
    assert summed(tmp_path)["requests"] == 1
    assert summed(file)["requests"] == 1
    (tmp_path / "notes.txt").write_text("not ours")
    assert summed(tmp_path)["requests"] == 1


def test_an_unreadable_ledger_is_said(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no usage ledger at"):
        read(tmp_path / "none", *FOREVER)
    loop = tmp_path / "usage-2026-11-30.jsonl"
    loop.mkdir()
    with pytest.raises(LedgerError, match=os.strerror(errno.EISDIR)):
        list(read(tmp_path, *FOREVER))

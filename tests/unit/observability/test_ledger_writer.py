"""The running ledger: the thread, the bound, the failing disk, the end."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.metrics import Metrics
from gateway.observability.ledger import UsageLedger, writer
from gateway.observability.ledger.report import read
from gateway.observability.settings import LedgerSettings
from tests.unit.observability.records import record

FOREVER = (0.0, 1e12)


def requests(path: Path) -> float:
    return sum(row.sums[0] for row in read(path, *FOREVER))


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"catalejo_{name}", labels) or 0


def ledger_at(path: Path, **fields: Any) -> tuple[UsageLedger, Metrics]:
    metrics = Metrics()
    return UsageLedger(LedgerSettings(path=path, **fields), metrics), metrics


@pytest.mark.parametrize("form", ["sqlite", "jsonl"])
def test_close_writes_everything_and_later_records_are_written_too(form: str, tmp_path: Path) -> None:
    """Requests cut by the end of the grace period finish after the application's own shutdown."""
    path = tmp_path / "ledger"
    ledger, metrics = ledger_at(path, format=form, flush_s=60)
    ledger.start()
    for _ in range(1000):
        ledger.add(record())
    ledger.close()
    assert requests(path) == 1000
    ledger.add(record())
    assert requests(path) == 1001
    assert value(metrics, "ledger_records_total", outcome="written") == 1001
    assert threading.active_count() == 1 or not any(t.name == "usage ledger" for t in threading.enumerate())


def test_a_failing_disk_is_one_line_of_log_and_a_metric(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "ledger"
    ledger, metrics = ledger_at(path, flush_s=0.001)
    with caplog.at_level(logging.WARNING, logger="catalejo.ledger"):
        ledger.start()
        while value(metrics, "ledger_failures_total") < 5:
            ledger.add(record())
        assert [r.levelname for r in caplog.records] == ["ERROR"]
        (tmp_path / "file").unlink()
        ledger.add(record())
        ledger.close()
        assert [r.levelname for r in caplog.records] == ["ERROR", "WARNING"]
    assert requests(path) == value(metrics, "ledger_records_total", outcome="written") > 1
    assert not value(metrics, "ledger_records_total", outcome="dropped")


def test_a_hanging_disk_holds_up_neither_the_loop_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, metrics = ledger_at(tmp_path / "ledger", flush_s=0.001)
    entered, free = threading.Event(), threading.Event()

    def hang() -> int:
        entered.set()
        free.wait(30)
        return 0

    monkeypatch.setattr(ledger._sink, "write", hang)
    monkeypatch.setattr(writer, "MAX_QUEUED", 10)
    ledger.start()
    assert entered.wait(10)
    for _ in range(25):
        ledger.add(record())
    assert value(metrics, "ledger_records_total", outcome="dropped") == 15
    ledger.close(timeout_s=0.05)
    assert "does not answer" in caplog.text
    ledger.add(record())
    free.set()
    assert ledger._thread is not None
    ledger._thread.join(10)
    assert not ledger._thread.is_alive()

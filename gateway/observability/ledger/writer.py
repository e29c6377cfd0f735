"""Takes finished requests on the event loop and has one thread write them, a batch every `flush_s`.

`add` costs an append and never fails: a disk that refuses is a metric and one line of log; what could not be written is
kept, bounded, and tried again with the next batch. A killed process loses at most the batch since the last write.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from gateway.metrics import Metrics, child
from gateway.observability.ledger.jsonl import JsonLines
from gateway.observability.ledger.sqlite import SqliteSums
from gateway.observability.settings import LedgerSettings
from gateway.observability.usage import UsageRecord

log = logging.getLogger("catalejo.ledger")
MAX_QUEUED: Final = 100_000
"""Records between the loop and the thread, which a disk that hangs (rather than fails) may hold up."""
CLOSE_TIMEOUT_S: Final = 10.0


class Sink(Protocol):
    """Where records go. Used by one thread at a time; `take` never fails, `write` may be tried again after a failure."""

    def take(self, records: Sequence[UsageRecord]) -> int:
        """Keeps the records until they are written; returns how many it had no room for."""

    def write(self) -> int:
        """Makes what was taken durable; returns how many records. Raises what the disk says."""

    def close(self) -> None:
        """Lets go of the file; the next `write` opens it again."""


class UsageLedger:
    """`start` and `close` are the running gateway's; between and after them `add` may be called from the event loop."""

    def __init__(self, settings: LedgerSettings, metrics: Metrics) -> None:
        assert settings.path is not None
        self._path = settings.path
        self._flush_s = settings.flush_s
        self._metrics = metrics
        self._sink: Sink = (JsonLines if settings.format == "jsonl" else SqliteSums)(
            settings.path, settings.retention_days
        )
        self._queue: deque[UsageRecord] = deque()
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._failing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Writes an empty batch first, so that a wrong path is in the log before the first request."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="usage ledger", daemon=True)
        self._thread.start()

    def add(self, record: UsageRecord) -> None:
        if len(self._queue) >= MAX_QUEUED:
            child(self._metrics.ledger_records, "dropped").inc()
            return
        self._queue.append(record)
        # The process is ending and the thread has gone: the last cancelled requests are written here.
        if self._stop.is_set() and self._writing.acquire(blocking=False):
            try:
                self._flush()
            finally:
                self._writing.release()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Writes what is left. Blocks, for at most `timeout_s`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.error("the usage ledger %s does not answer; its last batch is lost", self._path)

    def _run(self) -> None:
        while True:
            stopping = self._stop.is_set()
            with self._writing:
                self._flush()
            if stopping:
                return
            self._stop.wait(self._flush_s)

    def _flush(self) -> None:
        records = [self._queue.popleft() for _ in range(len(self._queue))]
        try:
            if dropped := self._sink.take(records):
                child(self._metrics.ledger_records, "dropped").inc(dropped)
            if written := self._sink.write():
                child(self._metrics.ledger_records, "written").inc(written)
        except Exception as e:  # whatever the disk or the library says, the thread lives on
            self._metrics.ledger_failures.inc()
            if not self._failing:
                log.error("the usage ledger %s cannot be written: %s; it is tried again", self._path, e)
            self._failing = True
        else:
            if self._failing:
                log.warning("the usage ledger %s is written again", self._path)
            self._failing = False
        finally:
            if self._stop.is_set():
                self._sink.close()

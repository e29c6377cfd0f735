"""Which worker is believed to hold which rows, so that pixels travel once.

The engine takes an item by hash alone (`range: null`; architecture, "Sending pixels once").

A belief, not a fact: the engine's store evicts as it likes and answers 409 `missing_media`, whereupon the caller
`forget`s what was missing, sends the rows and `add`s them again. A worker that restarts is forgotten whole.
Per worker the hashes used least recently are dropped first, above a number of bytes (set it to the engine's store) and
a number of entries. Event loop only; no locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

DEFAULT_BYTES: Final = 4 << 30
DEFAULT_ENTRIES: Final = 65_536
DEFAULT_WORKERS: Final = 1024


class _Shelf:
    __slots__ = ("bytes", "rows")

    def __init__(self) -> None:
        self.rows: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0

    def drop(self, item_hash: str) -> None:
        self.bytes -= self.rows.pop(item_hash, 0)


class Residency:
    """Keys are worker names (any stable string) and item hashes (hex, `engine.wire.Item.hash`)."""

    def __init__(
        self,
        *,
        max_bytes: int = DEFAULT_BYTES,
        max_entries: int = DEFAULT_ENTRIES,
        max_workers: int = DEFAULT_WORKERS,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._max_workers = max_workers
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()

    def known(self, worker: str, item_hash: str) -> bool:
        """True when `worker` probably has the rows. Asking counts as use, as it does in the engine."""
        shelf = self._shelves.get(worker)
        if shelf is None or item_hash not in shelf.rows:
            return False
        shelf.rows.move_to_end(item_hash)
        return True

    def count(self, worker: str, hashes: Iterable[str]) -> int:
        """How many of `hashes` the worker probably has; asking does not count as use (for routing)."""
        shelf = self._shelves.get(worker)
        return 0 if shelf is None else sum(h in shelf.rows for h in hashes)

    def add(self, worker: str, item_hash: str, size_bytes: int = 0) -> None:
        """After the engine accepted a request that carried the rows."""
        shelf = self._shelves.get(worker)
        if shelf is None:
            shelf = self._shelves[worker] = _Shelf()
            if len(self._shelves) > self._max_workers:
                self._shelves.popitem(last=False)
        shelf.drop(item_hash)
        shelf.rows[item_hash] = size_bytes
        shelf.bytes += size_bytes
        while shelf.rows and (shelf.bytes > self._max_bytes or len(shelf.rows) > self._max_entries):
            _, size = shelf.rows.popitem(last=False)
            shelf.bytes -= size

    def forget(self, worker: str, item_hash: str | None = None) -> None:
        """One hash after a 409, or everything (None) when the worker restarted or left."""
        if item_hash is None:
            self._shelves.pop(worker, None)
        elif worker in self._shelves:
            self._shelves[worker].drop(item_hash)

"""Ids of ordinary runs already encoded: the turns of a conversation come again with every request of it.

Least recently used goes first; the size in bytes is bounded. Entries belong to a scope (the tenant): otherwise the time
that a request takes would tell one tenant what another has sent. Without a scope nothing is kept."""

from __future__ import annotations

import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

MIN_CHARS: Final = 64
"""Shorter runs are encoded about as fast as they are found."""
_ENTRY_BYTES: Final = 400
_ID_BYTES: Final = array("I").itemsize
_PIECE: Final = 1 << 16
"""Ids converted at once: a millisecond, after which other threads have their turn."""


class RunCache:
    """Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, scope: str, text: str) -> list[int] | None:
        with self._lock:
            found = self._entries.get((scope, text))
            if found is None:
                return None
            self._entries.move_to_end((scope, text))
        out: list[int] = []
        for i in range(0, len(found), _PIECE):
            out += found[i : i + _PIECE].tolist()
        return out

    def put(self, scope: str, text: str, ids: Sequence[int]) -> None:
        if len(text) < MIN_CHARS:
            return
        size = self._size(text, len(ids))
        if size > self._max_bytes // 4:
            return
        entry = array("I")
        for i in range(0, len(ids), _PIECE):
            entry.extend(ids[i : i + _PIECE])
        with self._lock:
            if (scope, text) in self._entries:
                return
            self._entries[scope, text] = entry
            self._bytes += size
            while self._bytes > self._max_bytes:
                (_, old), gone = self._entries.popitem(last=False)
                self._bytes -= self._size(old, len(gone))

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @staticmethod
    def _size(text: str, ids: int) -> int:
        return sys.getsizeof(text) + _ID_BYTES * ids + _ENTRY_BYTES

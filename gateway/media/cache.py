"""What the media room remembers. All on the event loop, no locks.

`PreparedCache`   (scope, source_key) -> rows; least recently used goes first; bounded in bytes
`ReferenceCache`  digest of (scope, URL or file id, options) -> source_key, so that a picture sent again is neither
                  fetched nor un-base64-ed; http entries expire, data: and file entries do not
`NegativeCache`   the same digest -> the problem found, for a short time
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from gateway.media.metrics import MediaMetrics
from gateway.media.problems import MediaProblem
from gateway.media.types import PreparedMedia

Clock = Callable[[], float]
Key = tuple[str, str]
"""(scope, hex source key)"""

ENTRY_OVERHEAD_BYTES: Final = 1024
MAX_REFERENCES: Final = 100_000
MAX_NEGATIVES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A prepared part and the facts that budgets and metrics ask for. `seconds`: what it cost to decode."""

    media: PreparedMedia
    source_bytes: int
    pixels: int
    seconds: float

    @property
    def size(self) -> int:
        return self.media.data.nbytes + ENTRY_OVERHEAD_BYTES


class PreparedCache:
    def __init__(self, limit_bytes: int, metrics: MediaMetrics) -> None:
        self._limit = limit_bytes
        self._metrics = metrics
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, key: Key) -> Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, entry: Entry) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._bytes -= old.size
        # One entry may not sweep out everything else.
        if entry.size <= self._limit // 2:
            self._entries[key] = entry
            self._bytes += entry.size
        while self._bytes > self._limit:
            _, gone = self._entries.popitem(last=False)
            self._bytes -= gone.size
            self._metrics.cache_evictions.inc()
        self._metrics.cache_bytes.set(self._bytes)
        self._metrics.cache_entries.set(len(self._entries))


class ReferenceCache:
    def __init__(self, clock: Clock = time.monotonic, limit: int = MAX_REFERENCES) -> None:
        self._clock = clock
        self._limit = limit
        self._entries: OrderedDict[bytes, tuple[Key, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, reference: bytes) -> Key | None:
        found = self._entries.get(reference)
        if found is None:
            return None
        if found[1] <= self._clock():
            del self._entries[reference]
            return None
        self._entries.move_to_end(reference)
        return found[0]

    def put(self, reference: bytes, key: Key, ttl_s: float) -> None:
        if ttl_s > 0:
            self._entries[reference] = (key, self._clock() + ttl_s)
            self._entries.move_to_end(reference)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)

    def forget(self, reference: bytes) -> None:
        self._entries.pop(reference, None)


class NegativeCache:
    def __init__(self, ttl_s: float, clock: Clock = time.monotonic, limit: int = MAX_NEGATIVES) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._limit = limit
        self._entries: OrderedDict[bytes, tuple[MediaProblem, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, reference: bytes) -> bool:
        found = self._entries.get(reference)
        if found is not None and found[1] <= self._clock():
            del self._entries[reference]
            return False
        return found is not None

    def refuse(self, reference: bytes) -> NoReturn:
        """Raises what was remembered, as new."""
        raise _fresh(self._entries[reference][0])

    def put(self, reference: bytes, problem: MediaProblem) -> None:
        if self._ttl_s > 0:
            self._entries[reference] = (_fresh(problem), self._clock() + self._ttl_s)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)


def _fresh(problem: MediaProblem) -> MediaProblem:
    """Without the traceback, whose frames hold bodies."""
    return MediaProblem(problem.code, problem.message, reason=problem.reason)

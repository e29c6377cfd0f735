"""What each worker's prefix cache probably holds: an LRU of block names per worker, bounded in blocks.

It is a guess from what we sent, so it can be wrong in both directions; the engine's `cached_tokens` tells the truth and the
hit rate of our guesses is a metric. A worker's set is kept closed under prefixes (a chain's first block is used last, so the
tail is dropped first), hence the longest cached prefix is found by bisection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from time import monotonic


class PrefixIndex:
    """`capacity_blocks`: how many blocks one worker's cache is believed to hold."""

    def __init__(self, capacity_blocks: int, clock: Callable[[], float] = monotonic) -> None:
        if capacity_blocks < 1:
            raise ValueError(f"capacity_blocks is {capacity_blocks}; it must be at least 1")
        self._default = capacity_blocks
        self._capacity: dict[str, int] = {}
        self._clock = clock
        self._workers: dict[str, OrderedDict[bytes, float]] = {}  # name -> when it was sent last

    def __len__(self) -> int:
        return sum(map(len, self._workers.values()))

    def size(self, worker: str) -> int:
        return len(self._workers.get(worker, ()))

    def set_capacity(self, worker: str, blocks: int) -> None:
        """The engine told its size."""
        self._capacity[worker] = max(1, blocks)

    def longest(self, worker: str, names: Sequence[bytes], since: float = float("-inf")) -> int:
        """How many leading blocks the worker probably has, of those sent since then."""
        held = self._workers.get(worker)
        if not held or not names or held.get(names[0], float("-inf")) < since or names[0] not in held:
            return 0
        low, high = 1, len(names)  # names[low - 1] is held
        while low < high:
            middle = (low + high + 1) // 2
            sent = held.get(names[middle - 1])
            if sent is not None and sent >= since:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, worker: str, names: Sequence[bytes]) -> None:
        """The worker is being sent this prompt. Only what its cache can hold is kept, from the front."""
        held = self._workers.setdefault(worker, OrderedDict())
        capacity = self._capacity.get(worker, self._default)
        now = self._clock()
        for name in reversed(names[:capacity]):
            held[name] = now
            held.move_to_end(name)
        while len(held) > capacity:
            held.popitem(last=False)

    def forget(self, worker: str) -> None:
        """The worker restarted or flushed its cache."""
        self._workers.pop(worker, None)

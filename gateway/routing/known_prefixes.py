"""The prefix index that asks engines' own events first, where they publish any, and guesses elsewhere.

Events tell what a cache holds, but late: a prompt that is being computed is in no event yet. So what was sent there within
`PENDING_S` counts as well; without it a burst of requests with one new prefix would spread over all engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from gateway.routing.prefix_index import PrefixIndex

PENDING_S: Final = 60.0


class Held(Protocol):
    def __len__(self) -> int: ...
    def longest(self, names: Sequence[bytes]) -> int: ...


class Follower(Protocol):
    """One publisher that is followed (kv_events/subscriber.py)."""

    @property
    def index(self) -> Held: ...
    @property
    def complete(self) -> bool: ...
    @property
    def trusted(self) -> bool: ...
    def sent(self) -> None: ...


class KnownPrefixes(PrefixIndex):
    def __init__(self, capacity_blocks: int, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(capacity_blocks, clock)
        self._followers: dict[str, Sequence[Follower]] = {}

    def follow(self, worker: str, followers: Sequence[Follower]) -> None:
        """From now on `worker` tells itself; one follower per cache it has (data-parallel ranks)."""
        self._followers[worker] = followers

    def unfollow(self, worker: str) -> None:
        self._followers.pop(worker, None)

    def exact(self, worker: str) -> bool:
        """Whether the engine's word is believed and is all there is to know."""
        followers = self._followers.get(worker, ())
        return bool(followers) and all(f.trusted and f.complete for f in followers)

    def size(self, worker: str) -> int:
        return sum(len(f.index) for f in self._followers[worker]) if self.exact(worker) else super().size(worker)

    def longest(self, worker: str, names: Sequence[bytes], since: float = float("-inf")) -> int:
        followers = self._followers.get(worker)
        if not followers or not all(f.trusted for f in followers):
            return super().longest(worker, names, since)
        held = max(f.index.longest(names) for f in followers)
        if held == len(names):
            return held
        if all(f.complete for f in followers):
            since = max(since, self._clock() - PENDING_S)
        return max(held, super().longest(worker, names, since))

    def add(self, worker: str, names: Sequence[bytes]) -> None:
        super().add(worker, names)
        for follower in self._followers.get(worker, ()):
            if follower.index.longest(names) < len(names):  # a prompt that is all cached gives nothing to tell
                follower.sent()

    def forget(self, worker: str) -> None:
        super().forget(worker)
        self.unfollow(worker)

"""The worker that serves this prompt at the least cost to everybody: longest cached prefix, weighed against work.

cost(worker) = new_weight * new tokens of this prompt there (prompt - cached; they delay every prompt behind it too)
             + tokens sent there and not yet computed               (they delay this prompt)
             + resident_weight * context tokens of what runs there  (decode steps read them)
             + recent_weight * tokens computed there of late        (half-life recent_s)
The least cost wins; ties go to fewer requests in flight, then to the name. All terms are tokens, so nothing needs tuning to a
model's speed. The last term only decides between near equals: without it a quiet cluster gives every new conversation to
the worker that has the shared prefix, and that worker is full when traffic comes.
A worker may not be favoured beyond `imbalance` times the mean in-flight count (plus one): a hot prefix is then copied to a
second worker, which is what a growing service needs anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from gateway.routing.known_prefixes import KnownPrefixes
from gateway.routing.policies.base import Candidate, Choice, RouteRequest


class PrefixAware:
    def __init__(
        self,
        index: KnownPrefixes,
        *,
        new_weight: float = 16.0,
        resident_weight: float = 0.02,
        recent_weight: float = 1.5,
        recent_s: float = 600.0,
        imbalance: float = 4.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.index = index
        self._new = new_weight
        self._resident = resident_weight
        self._recent = recent_weight
        self._half_life = recent_s
        self._imbalance = imbalance
        self._clock = clock
        self._work: dict[str, tuple[float, float]] = {}  # worker -> (tokens, as of)

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Choice:
        limit = self._imbalance * (sum(c.in_flight for c in candidates) / len(candidates)) + 1
        allowed = [c for c in candidates if c.in_flight <= limit] or list(candidates)
        now = self._clock()
        best: tuple[float, int, str] | None = None
        cached_best = longest = 0
        for c in allowed:
            cached = min(self.index.longest(c.name, request.names) * request.block_tokens, request.prompt_tokens)
            longest = max(longest, cached)
            cost = self._new * (request.prompt_tokens - cached) + c.pending_tokens
            cost += self._resident * c.resident_tokens + self._recent * self._recent_work(c.name, now)
            key = (cost, c.in_flight, c.name)
            if best is None or key < best:
                best, cached_best = key, cached
        assert best is not None
        reason = "no_prefix" if not longest else "prefix" if cached_best == longest else "load"
        return Choice(best[2], reason, cached_best)

    def _recent_work(self, name: str, now: float) -> float:
        tokens, since = self._work.get(name, (0.0, now))
        return float(tokens * 0.5 ** ((now - since) / self._half_life))

    def sent(self, name: str, request: RouteRequest) -> None:
        now = self._clock()
        cached = self.index.longest(name, request.names) * request.block_tokens
        self._work[name] = (self._recent_work(name, now) + max(0, request.prompt_tokens - cached), now)
        self.index.add(name, request.names)

    def lost(self, name: str) -> None:
        self.index.forget(name)
        self._work.pop(name, None)

    def known_blocks(self, name: str) -> int:
        return self.index.size(name)

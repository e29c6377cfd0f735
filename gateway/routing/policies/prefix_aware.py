"""The worker that can begin soonest: longest cached prefix, weighed against the work already waiting there.

cost(worker) = new tokens of this prompt there (prompt - cached)
             + pending_weight  * tokens sent there and not yet computed
             + resident_weight * context tokens of what runs there   (decode steps read them)
The least cost wins; ties go to fewer requests in flight, then to the name. All terms are tokens, so nothing needs tuning to a
model's speed: the first two are prefill work before this prompt's first token, the third is how slow decoding will be.
A worker may not be favoured beyond `imbalance` times the mean in-flight count (plus one): a hot prefix is then copied to a
second worker, which is what a growing service needs anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.routing.policies.base import Candidate, Choice, RouteRequest
from gateway.routing.prefix_index import PrefixIndex


class PrefixAware:
    def __init__(
        self,
        index: PrefixIndex,
        *,
        pending_weight: float = 1.0,
        resident_weight: float = 0.02,
        imbalance: float = 2.0,
    ) -> None:
        self.index = index
        self._pending = pending_weight
        self._resident = resident_weight
        self._imbalance = imbalance

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Choice:
        limit = self._imbalance * (sum(c.in_flight for c in candidates) / len(candidates)) + 1
        allowed = [c for c in candidates if c.in_flight <= limit] or list(candidates)
        best: tuple[float, int, str] | None = None
        cached_best = longest = 0
        for c in allowed:
            cached = min(self.index.longest(c.name, request.names) * request.block_tokens, request.prompt_tokens)
            longest = max(longest, cached)
            cost = (
                request.prompt_tokens - cached + self._pending * c.pending_tokens + self._resident * c.resident_tokens
            )
            key = (cost, c.in_flight, c.name)
            if best is None or key < best:
                best, cached_best = key, cached
        assert best is not None
        reason = "prefix" if cached_best and cached_best == longest else "load" if longest else "no_prefix"
        return Choice(best[2], reason, cached_best)

    def sent(self, name: str, request: RouteRequest) -> None:
        self.index.add(name, request.names)

    def lost(self, name: str) -> None:
        self.index.forget(name)

"""The policies without memory of prompts: round robin, power of two, least load."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gateway.routing.policies.base import Candidate, Choice, RouteRequest


class _Stateless:
    def sent(self, name: str, request: RouteRequest) -> None:
        return None

    def lost(self, name: str) -> None:
        return None

    def known_blocks(self, name: str) -> int:
        return 0


class RoundRobin(_Stateless):
    """Each in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Choice:
        chosen = candidates[self._next % len(candidates)]
        self._next += 1
        return Choice(chosen.name, "turn")


class PowerOfTwo(_Stateless):
    """The less busy of two drawn at random (Mitzenmacher 2001): nearly as even as the least busy, and gateways that do not
    know each other do not all run to the same worker."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Choice:
        pair = self._rng.sample(list(candidates), min(2, len(candidates)))
        return Choice(min(pair, key=lambda c: (c.in_flight, c.name)).name, "lighter_of_two")


class LeastLoad(_Stateless):
    """The least busy, by the engine's own word when it gives one (it sees other gateways' requests too), plus ours."""

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Choice:
        def load(c: Candidate) -> tuple[float, int, str]:
            reported = c.reported_load if c.reported_load is not None else 0.0
            return max(reported, float(c.in_flight)), c.resident_tokens, c.name

        return Choice(min(candidates, key=load).name, "least_load")

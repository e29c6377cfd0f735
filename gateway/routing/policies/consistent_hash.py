"""The same session to the same worker, with bounded load.

Rendezvous hashing (Thaler & Ravishankar 1998): each worker scores hash(session, worker), the highest wins, so a worker that
leaves moves only its own sessions. A worker above `bound` times the mean load is passed over for the next in the session's
order (Mirrokni et al. 2018, consistent hashing with bounded loads). Without a session: least in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from gateway.routing.policies.base import Candidate, Choice, RouteRequest


class ConsistentHash:
    def __init__(self, bound: float = 1.25) -> None:
        self._bound = bound

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Choice:
        if not request.session:
            return Choice(min(candidates, key=lambda c: (c.in_flight, c.name)).name, "no_session")
        limit = self._bound * (sum(c.in_flight for c in candidates) + 1) / len(candidates)
        order = sorted(candidates, key=lambda c: self._score(request.session, c.name), reverse=True)
        for place, candidate in enumerate(order):
            if candidate.in_flight < limit:
                return Choice(candidate.name, "home" if place == 0 else "overflow")
        return Choice(order[0].name, "home")

    @staticmethod
    def _score(session: str, name: str) -> bytes:
        return blake3(f"{name}\x00{session}".encode()).digest(length=8)

    def sent(self, name: str, request: RouteRequest) -> None:
        return None

    def lost(self, name: str) -> None:
        return None

    def known_blocks(self, name: str) -> int:
        return 0

"""The workers there are: which are kept, which are new and which leave when the list of engines changes.

A worker that left gets no new requests; its running streams finish, and only then its connections and its series of
metrics go. An engine that comes back before that is the same worker again, with all it knew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gateway.metrics import Metrics
from gateway.routing.settings import EngineEndpoint
from gateway.routing.worker import Worker

log = logging.getLogger("catalejo.routing")


class Fleet:
    def __init__(
        self, make: Callable[[str, EngineEndpoint], Worker], lost: Callable[[str], None], metrics: Metrics
    ) -> None:
        """`make(name, endpoint)`: a new worker. `lost(name)`: what is known of the worker of that name no longer holds."""
        self._make = make
        self._lost = lost
        self._metrics = metrics
        self.workers: list[Worker] = []
        self._leaving: list[Worker] = []

    def set(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Makes the fleet that of `endpoints`, in their order.

        Raises ValueError when two endpoints have one name, and what `make` raises; the fleet is then as it was."""
        given = [e.name for e in endpoints if e.name]
        if len(given) != len(set(given)):
            raise ValueError("engines: names must differ")
        before = self.workers
        pool = [*before, *self._leaving]
        chosen: list[Worker | None] = []
        for endpoint in endpoints:
            same = (w for w in pool if w.endpoint == endpoint and (endpoint.name or w.name not in given))
            worker = next(same, None)
            if worker is not None:
                pool.remove(worker)
            chosen.append(worker)
        names = _names(endpoints, [w.name if w else None for w in chosen], {w.name for w in pool})
        workers = [
            kept or self._make(name, endpoint) for name, endpoint, kept in zip(names, endpoints, chosen, strict=True)
        ]
        # A new one may have an old one's name.
        for worker in pool:
            if worker.name in names and not worker.silent:
                worker.silence()
                self._lost(worker.name)
        self._leaving = pool
        for worker in workers:
            worker.speak()
        self.workers = workers
        added = [w.name for w in self.workers if w not in before]
        gone = [w.name for w in before if w not in self.workers]
        if added or gone:
            log.info("engines: %s added, %s removed", ", ".join(added) or "none", ", ".join(gone) or "none")

    def find(self, name: str) -> Worker | None:
        return next((w for w in self.workers if w.name == name), None)

    @property
    def leaving(self) -> Sequence[Worker]:
        """Removed, and not yet dropped."""
        return self._leaving

    def close(self) -> None:
        for worker in (*self.workers, *self._leaving):
            worker.client.close()

    def sweep(self) -> None:
        """Drops the workers that left and have finished."""
        for worker in [w for w in self._leaving if not w.in_flight]:
            self._leaving.remove(worker)
            worker.client.close()
            if not worker.silent:
                worker.silence()
                self._lost(worker.name)
                self._metrics.forget_worker(worker.name)


def _names(endpoints: Sequence[EngineEndpoint], kept: Sequence[str | None], leaving: set[str]) -> list[str]:
    """The configured name, else the kept worker's, else engine-<place>, else the first engine-<number> that is free."""
    names = [e.name or k or "" for e, k in zip(endpoints, kept, strict=True)]
    for i, name in enumerate(names):
        if not name:
            numbers = [i, *range(2 * len(names) + len(leaving) + 1)]
            names[i] = next(n for n in (f"engine-{k}" for k in numbers) if n not in names and n not in leaving)
    return names

"""One engine as routing sees it: healthy or not, how busy, which media it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic

from engine.wire import Item
from gateway.media.residency import Residency
from gateway.metrics import Metrics
from gateway.routing.settings import RoutingSettings
from gateway.upstream.client import EngineClient


class Worker:
    def __init__(self, client: EngineClient, settings: RoutingSettings, metrics: Metrics, rows: Residency) -> None:
        self.client = client
        self.name = client.name
        self.healthy = False
        self.context_length: int | None = None
        self.in_flight = 0
        self._settings = settings
        self._metrics = metrics
        self._failures = 0
        self._open_until = 0.0
        self._rows = rows

    def usable(self) -> bool:
        return self.healthy and monotonic() >= self._open_until

    def set_health(self, healthy: bool, context_length: int | None) -> None:
        if not healthy:
            self._rows.forget(self.name)  # a restarted engine has an empty store
        self.healthy = healthy
        self.context_length = context_length or self.context_length
        self._metrics.worker_up.labels(self.name).set(healthy)

    def __enter__(self) -> Worker:
        self.in_flight += 1
        self._metrics.worker_in_flight.labels(self.name).set(self.in_flight)
        return self

    def __exit__(self, *_: object) -> None:
        self.in_flight -= 1
        self._metrics.worker_in_flight.labels(self.name).set(self.in_flight)

    def succeeded(self) -> None:
        self._failures = 0
        self._metrics.worker_breaker.labels(self.name).set(0)

    def failed(self) -> None:
        """Counts a failure of the engine itself, never a refusal of the client's request."""
        self._failures += 1
        if self._failures >= self._settings.breaker_failures:
            self._open_until = monotonic() + self._settings.breaker_open_s
            self._metrics.worker_breaker.labels(self.name).set(1)

    def known_media(self, hashes: Iterable[str]) -> frozenset[str]:
        """Those whose rows the engine probably has; asking counts as use."""
        return frozenset(h for h in hashes if self._rows.known(self.name, h))

    def count_media(self, hashes: Iterable[str]) -> int:
        return self._rows.count(self.name, hashes)

    def remember_media(self, items: Sequence[Item]) -> None:
        for item in items:
            self._rows.add(self.name, item.hash, item.nbytes)

    def forget_media(self, hashes: Iterable[str]) -> None:
        for h in hashes:
            self._rows.forget(self.name, h)

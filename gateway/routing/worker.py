"""One engine as routing sees it: healthy or not, how busy, which media it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from time import monotonic

from gateway.metrics import Metrics
from gateway.routing.settings import RoutingSettings
from gateway.upstream.client import EngineClient


class Worker:
    def __init__(self, client: EngineClient, settings: RoutingSettings, metrics: Metrics) -> None:
        self.client = client
        self.name = client.name
        self.healthy = False
        self.context_length: int | None = None
        self.in_flight = 0
        self._settings = settings
        self._metrics = metrics
        self._failures = 0
        self._open_until = 0.0
        self._media: OrderedDict[str, None] = OrderedDict()

    def usable(self) -> bool:
        return self.healthy and monotonic() >= self._open_until

    def set_health(self, healthy: bool, context_length: int | None) -> None:
        if not healthy:
            self._media.clear()  # a restarted engine has an empty store
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
        return frozenset(h for h in hashes if h in self._media)

    def remember_media(self, hashes: Iterable[str]) -> None:
        for h in hashes:
            self._media[h] = None
            self._media.move_to_end(h)
        while len(self._media) > self._settings.known_media:
            self._media.popitem(last=False)

"""One engine as routing sees it: healthy or not, how busy, which media it holds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final, Literal

from engine.wire import Item
from gateway.media.residency import Residency
from gateway.metrics import Metrics, child
from gateway.routing.outliers import Recent
from gateway.routing.settings import EngineEndpoint, RoutingSettings
from gateway.upstream.client import REFUSES, EngineClient, EngineStatus

log = logging.getLogger("catalejo.routing")
MOST_EJECTIONS: Final = 10


class Ticket:
    """One request at one worker, from the moment it is chosen until its last byte. Its prompt is work to be done until its
    first token comes or it ends."""

    __slots__ = ("_began", "_new_tokens", "_pending", "_probe", "_prompt_tokens", "_worker")

    def __init__(self, worker: Worker, prompt_tokens: int, new_tokens: int) -> None:
        self._worker = worker
        self._prompt_tokens = prompt_tokens
        self._pending = self._new_tokens = new_tokens
        self._began = monotonic()
        self._probe = worker.breaker == "half_open"
        worker.probes += self._probe
        worker.pending_tokens += new_tokens
        worker.resident_tokens += prompt_tokens
        worker.count(1)

    def computed(self) -> None:
        """The first token came."""
        self._worker.recent.first_token(monotonic() - self._began, self._new_tokens)
        self._settle()

    def end(self) -> None:
        """The request has ended; to be called once."""
        self._settle()
        self._worker.resident_tokens -= self._prompt_tokens
        self._worker.count(-1)

    def _settle(self) -> None:
        pending, self._pending = self._pending, 0
        self._worker.pending_tokens -= pending
        probe, self._probe = self._probe, False
        self._worker.probes -= probe


class Worker:
    def __init__(
        self,
        endpoint: EngineEndpoint,
        client: EngineClient,
        settings: RoutingSettings,
        metrics: Metrics,
        rows: Residency,
    ) -> None:
        self.endpoint = endpoint
        self.client = client
        self.name = client.name
        self.healthy = False
        self.asked = False
        """It was asked for its health, and answered or not."""
        self.draining = False
        """No new requests by an operator's word; what runs there finishes."""
        self.silent = False
        """It left and writes no metrics any more; another worker may have its name."""
        self.context_length: int | None = None
        self.in_flight = 0
        self.pending_tokens = 0
        self.resident_tokens = 0
        self.reported_load: float | None = None
        self._settings = settings
        self._metrics = metrics
        self._failures = 0
        self._silences = 0
        self._told: str | None = None
        self._open_until = 0.0
        self.probes = 0
        """Requests that try an engine whose breaker was open, before their first token: one at a time."""
        self.recent = Recent(settings.outliers.window_s)
        self._ejected_until = 0.0
        self._ejections = 0
        self._rows = rows
        metrics.worker_draining.labels(self.name).set(0)

    def open(self) -> bool:
        """Whether new requests may go there at all."""
        return self.healthy and not self.draining

    def usable(self) -> bool:
        if not self.open() or self.ejected:
            return False
        breaker = self.breaker
        return breaker == "closed" or (breaker == "half_open" and not self.probes)

    @property
    def ejected(self) -> bool:
        """It is far from its peers, and left alone for now."""
        return monotonic() < self._ejected_until

    def eject(self, reason: str) -> None:
        """Longer each time it comes back no better."""
        since = monotonic() - self._ejected_until
        seconds = self._settings.outliers.ejection_s
        # An engine that did well for as long as it was away begins anew.
        self._ejections = (
            self._ejections + 1 if since < self._ejections * seconds + self._settings.outliers.window_s else 1
        )
        self._ejected_until = monotonic() + seconds * min(self._ejections, MOST_EJECTIONS)
        self.recent.clear()
        log.warning("engine %s is far from its peers (%s): no new requests for %.0f s", self.name, reason,
                    self._ejected_until - monotonic())  # fmt: skip
        self._metrics.worker_ejections.labels(self.name, reason).inc()

    @property
    def breaker(self) -> Literal["closed", "open", "half_open"]:
        """half_open: it may be tried again, and one failure opens it again."""
        if self._failures < self._settings.breaker_failures:
            return "closed"
        return "open" if monotonic() < self._open_until else "half_open"

    def drain(self, draining: bool) -> None:
        self.draining = draining
        if not self.silent:
            self._metrics.worker_draining.labels(self.name).set(draining)

    def silence(self) -> None:
        self.silent = True

    def speak(self) -> None:
        """It is on the list again."""
        if self.silent:
            self.silent = False
            self.drain(self.draining)
            self._set_healthy(self.healthy, self._told or "")
            self._tell_in_flight()

    def take_status(self, status: EngineStatus) -> bool:
        """Returns whether the engine was lost just now.

        One late answer is no death: a busy engine answers late. It is lost after `health_failures` silences in a row, or
        at once when nothing listens or it says itself that it is not well."""
        self.asked = True
        if status.healthy:
            self._silences = 0
            self.reported_load = status.load
            self.context_length = status.context_length or self.context_length
            self._set_healthy(True, "")
            return False
        self._silences += 1
        if status.silent and self._silences < self._settings.health_failures:
            return False
        lost = self.healthy
        self._rows.forget(self.name)  # a restarted engine has an empty store
        self.reported_load = None
        self._set_healthy(False, status.detail)
        return lost

    def unreachable(self) -> bool:
        """Nothing listens at the engine: it is lost until a health check finds it. Returns whether it was lost just now."""
        return self.take_status(EngineStatus(healthy=False, detail=REFUSES))

    def _set_healthy(self, healthy: bool, detail: str) -> None:
        if healthy and not self.healthy:
            log.info("engine %s is up", self.name)
        elif not healthy and (self.healthy or detail != self._told):
            log.warning("engine %s is not usable: %s", self.name, detail)
        self._told = detail
        self.healthy = healthy
        if not self.silent:
            self._metrics.worker_up.labels(self.name).set(healthy)

    def take(self, prompt_tokens: int, new_tokens: int) -> Ticket:
        """Counts a request as this worker's until the ticket's end."""
        return Ticket(self, prompt_tokens, new_tokens)

    def count(self, change: int) -> None:
        """More or fewer requests run there."""
        self.in_flight += change
        self._tell_in_flight()

    def _tell_in_flight(self) -> None:
        if not self.silent:
            child(self._metrics.worker_in_flight, self.name).set(self.in_flight)

    def succeeded(self) -> None:
        self.recent.outcome(True)
        self._failures = 0
        if not self.silent:
            child(self._metrics.worker_breaker, self.name).set(0)

    def failed(self) -> None:
        """Counts a failure of the engine itself, never a refusal of the client's request."""
        self.recent.outcome(False)
        self._failures += 1
        if self._failures >= self._settings.breaker_failures:
            self._open_until = monotonic() + self._settings.breaker_open_s
            if not self.silent:
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

"""Who may, and how many at once: API keys, a bounded number of places, a bounded queue before them.

A place is an async context manager around the whole stream, so it comes back on every path."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from time import monotonic

from gateway.admission.settings import AdmissionSettings
from gateway.errors import ApiError
from gateway.metrics import Metrics


class Admission:
    def __init__(self, settings: AdmissionSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._keys = [k.get_secret_value().encode() for k in settings.api_keys]
        self._places = asyncio.Semaphore(settings.max_in_flight)
        self._waiting = 0

    def authenticate(self, authorization: str | None) -> str:
        """The tenant's name: "default" without keys, else a digest of the key. Raises ApiError("invalid_api_key")."""
        if not self._keys:
            return "default"
        scheme, _, given = (authorization or "").partition(" ")
        key = given.strip().encode() if scheme.lower() == "bearer" else b""
        matches = [hmac.compare_digest(key, known) for known in self._keys]  # all of them: no early end
        if any(matches):
            return blake2b(key, digest_size=8).hexdigest()
        self._metrics.refused.labels("key").inc()
        message = "give a valid API key in the header 'Authorization: Bearer KEY'"
        raise ApiError("invalid_api_key", message, headers={"www-authenticate": "Bearer"})

    @asynccontextmanager
    async def acquire(self, tenant: str) -> AsyncIterator[None]:
        """Holds one place. Raises ApiError: queue_full, or overloaded after queue_timeout_s."""
        if self._places.locked():
            await self._wait()
        else:
            await self._places.acquire()
        self._metrics.admitted.inc()
        try:
            yield
        finally:
            self._metrics.admitted.dec()
            self._places.release()

    async def _wait(self) -> None:
        if self._waiting >= self._settings.max_queue:
            self._metrics.refused.labels("queue_full").inc()
            raise ApiError("queue_full", f"{self._waiting} requests are waiting already; try again later")
        self._waiting += 1
        self._metrics.queue_depth.set(self._waiting)
        began = monotonic()
        try:
            async with asyncio.timeout(self._settings.queue_timeout_s):
                await self._places.acquire()
        except TimeoutError:
            self._metrics.refused.labels("queue_timeout").inc()
            message = f"no place became free within {self._settings.queue_timeout_s:g} s"
            raise ApiError("overloaded", message) from None
        finally:
            self._waiting -= 1
            self._metrics.queue_depth.set(self._waiting)
            self._metrics.queue_seconds.observe(monotonic() - began)

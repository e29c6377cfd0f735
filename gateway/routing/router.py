"""Chooses a worker: the usable one with the fewest requests of ours; ties go to the one that knows most of the media,
then to the name. Also asks every engine for its health, now and then.

Not here: what a worker is (worker.py), the HTTP to it (gateway/upstream)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp

from gateway.errors import ApiError
from gateway.media.residency import Residency
from gateway.metrics import Metrics
from gateway.routing.settings import EngineEndpoint, RoutingSettings
from gateway.routing.worker import Worker
from gateway.upstream.client import EngineClient
from gateway.upstream.settings import UpstreamSettings


class Router:
    def __init__(
        self,
        endpoints: Sequence[EngineEndpoint],
        default_token: str | None,
        settings: RoutingSettings,
        upstream: UpstreamSettings,
        metrics: Metrics,
    ) -> None:
        self._endpoints = endpoints
        self._default_token = default_token
        self._settings = settings
        self._upstream = upstream
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None
        self._health: asyncio.Task[None] | None = None
        self.workers: list[Worker] = []

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=self._upstream.pool_idle_s)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, read_bufsize=1 << 18)
        rows = Residency(max_bytes=self._settings.known_media_bytes)
        for i, endpoint in enumerate(self._endpoints):
            token = endpoint.token.get_secret_value() if endpoint.token else self._default_token
            name = endpoint.name or f"engine-{i}"
            client = EngineClient(name, endpoint.url, token, self._session, self._upstream, self._metrics)
            self.workers.append(Worker(client, self._settings, self._metrics, rows))
        await self._check_all()
        self._health = asyncio.create_task(self._watch(), name="engine health")

    async def close(self) -> None:
        if self._health is not None:
            self._health.cancel()
            await asyncio.gather(self._health, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def pick(self, media_hashes: Sequence[str] = (), *, exclude: frozenset[str] = frozenset()) -> Worker:
        """Raises ApiError("engine_unavailable") when no engine is usable."""
        usable = [w for w in self.workers if w.usable() and w.name not in exclude]
        if not usable:
            raise ApiError("engine_unavailable", "no engine is available at the moment; try again")
        best = min(usable, key=lambda w: (w.in_flight, -w.count_media(media_hashes), w.name))
        self._metrics.routing_decisions.labels("least_in_flight", "only" if len(usable) == 1 else "load").inc()
        return best

    @property
    def ready(self) -> bool:
        return any(w.healthy for w in self.workers)

    @property
    def context_length(self) -> int | None:
        """The smallest context among the engines that have told theirs."""
        return min((w.context_length for w in self.workers if w.context_length), default=None)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.health_interval_s)
            await self._check_all()

    async def _check_all(self) -> None:
        await asyncio.gather(*(self._check(w) for w in self.workers))

    async def _check(self, worker: Worker) -> None:
        status = await worker.client.status(self._settings.health_timeout_s)
        worker.set_health(status.healthy, status.context_length)

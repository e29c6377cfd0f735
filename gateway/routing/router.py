"""Chooses a worker among the usable ones by the configured policy, and asks every engine for its health now and then.

Not here: what a worker is (worker.py), how a policy decides (policies/), the HTTP to it (gateway/upstream)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final

import aiohttp
import numpy as np
from numpy.typing import NDArray

from engine.wire import Item
from gateway.errors import ApiError
from gateway.media.residency import Residency
from gateway.metrics import Metrics, child
from gateway.routing.blocks import block_names
from gateway.routing.connect import engine_client
from gateway.routing.discovery import DiscoverySettings, Source, make_source
from gateway.routing.elsewhere import Elsewhere, Load, own_load
from gateway.routing.engine_names import EngineNames
from gateway.routing.fleet import Fleet
from gateway.routing.kv_events.follow import KvEvents
from gateway.routing.outliers import outliers
from gateway.routing.policies import Choice, Policy, RouteRequest, make_policy
from gateway.routing.policies.prefix_aware import PrefixAware
from gateway.routing.settings import EngineEndpoint, RoutingSettings
from gateway.routing.worker import Worker
from gateway.upstream.client import EngineStatus
from gateway.upstream.settings import EngineTls, UpstreamSettings
from gateway.upstream.tls import TlsContexts

log = logging.getLogger("catalejo.routing")
STARTING_INTERVAL_S: Final = 0.25
"""How often engines are asked while none is up: a gateway should be ready as soon as its first engine is."""

DISCOVERY_RESTART_S: Final = 5.0


class Router:
    def __init__(
        self,
        endpoints: Sequence[EngineEndpoint],
        default_token: str | None,
        settings: RoutingSettings,
        upstream: UpstreamSettings,
        metrics: Metrics,
        vocab_size: int | None = None,
        discovery: DiscoverySettings | None = None,
        among: EngineNames | None = None,
    ) -> None:
        """`vocab_size`: of the checkpoint prompts are made with; an engine that tells another one is not used. `discovery`:
        where engines are found besides `endpoints`; raises ValueError when it cannot work here. `among`: the names of the
        engines of all models, when there are several."""
        self._vocab_size = vocab_size
        self._default_token = default_token
        self._settings = settings
        self._upstream = upstream
        self._metrics = metrics
        self._policy: Policy = make_policy(settings)
        self._events: KvEvents | None = None
        if isinstance(self._policy, PrefixAware) and settings.kv_events:
            self._events = KvEvents(self._policy.index, settings, metrics)
        self._rows = Residency(max_bytes=settings.known_media_bytes)
        self._session: aiohttp.ClientSession | None = None
        self._look = asyncio.Event()
        """Set: an engine may be gone or new, do not wait for the next round of checks."""
        self._health: asyncio.Task[None] | None = None
        self._meeting: asyncio.Future[Any] | None = None
        self.on_sent: Callable[[str, RouteRequest], None] | None = None
        """Told of every decision that `heard` of another process's router has a use for."""
        self.elsewhere = Elsewhere()
        self._endpoints: Sequence[EngineEndpoint] = endpoints
        self._found: Sequence[EngineEndpoint] = ()
        self._refused: Sequence[EngineEndpoint] | None = None
        """What was found last and cannot be used now."""
        self._among = among
        self._max_engines = discovery.max_engines if discovery else 0
        self._source = make_source(discovery, metrics) if discovery else None
        self._discovery: asyncio.Task[None] | None = None
        self._tls = TlsContexts()
        self._fleet = Fleet(self._make, self._forget, metrics)

    @property
    def workers(self) -> Sequence[Worker]:
        return self._fleet.workers

    @property
    def leaving(self) -> Sequence[Worker]:
        """Engines that were removed and still finish streams."""
        return self._fleet.leaving

    async def start(self) -> None:
        """Raises ValueError for TLS files that cannot be used."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=self._upstream.pool_idle_s)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, read_bufsize=1 << 18)
        try:
            if self._upstream.tls != EngineTls():
                self._tls.get(self._upstream.tls)  # wrong files stop the start, also when no engine is known yet
            self._set_fleet(self._endpoints)
        except ValueError:
            await self._session.close()
            raise
        await self._check_all()
        self._health = asyncio.create_task(self._watch(), name="engine health")
        if self._source is not None:
            self._discovery = asyncio.create_task(self._discover(self._source), name="engine discovery")

    async def close(self) -> None:
        for task in (self._discovery, self._health, self._meeting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._events is not None:
            await self._events.close()
        self._fleet.close()
        if self._session is not None:
            await self._session.close()

    def set_engines(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """From now on these are the engines, besides those that discovery finds. A worker whose endpoint is unchanged stays as it
        is; a new one is asked for its health at once; one that is gone gets no new requests and finishes what runs there.

        Raises ValueError when two have one name or their TLS files cannot be used; nothing has changed then."""
        self._set_fleet(endpoints)
        self._endpoints = endpoints
        if self._session is not None:
            self._look.set()

    def _set_fleet(self, endpoints: Sequence[EngineEndpoint]) -> None:
        if self._session is None:
            return
        besides = self._besides(endpoints)
        with nullcontext() if self._among is None else self._among.claimed(endpoints, besides):
            self._fleet.set([*endpoints, *besides])

    def drain(self, name: str, draining: bool) -> bool:
        """No new requests for the engine of that name, or again some. False when there is none of that name."""
        worker = self._fleet.find(name)
        if worker is None:
            return False
        worker.drain(draining)
        return True

    def indexed_tokens(self, name: str) -> int:
        """Prefix tokens that the engine is believed to cache; 0 for policies that do not ask."""
        return self._policy.known_blocks(name) * self._settings.block_tokens

    def index_is_exact(self, name: str) -> bool:
        """Whether the engine itself tells what its cache holds."""
        return isinstance(self._policy, PrefixAware) and self._policy.index.exact(name)

    async def _discover(self, source: Source) -> None:
        while True:
            try:
                await source.run(self._discovered)
            except Exception:  # what no source foresaw: the engines known stay, and it is started anew
                log.exception("discovery failed; it is started again in %.0f s", DISCOVERY_RESTART_S)
            await asyncio.sleep(DISCOVERY_RESTART_S)

    def _discovered(self, found: Sequence[EngineEndpoint]) -> None:
        if len(found) > self._max_engines:
            log.error("%d engines found, the first %d are used (discovery.max_engines)", len(found), self._max_engines)
        found = found[: self._max_engines]
        if self._among is not None:
            found = [e.named_for(self._among.model) for e in found]
        if problem := self._use(found):
            log.error("the engines that were found cannot be used: %s", problem)

    def _use(self, found: Sequence[EngineEndpoint]) -> str:
        """Takes `found` for what discovery finds, or says why not: then what was found before stays, and it is tried again."""
        before, self._found = self._found, found
        try:
            self.set_engines(self._endpoints)
        except ValueError as e:
            self._found, self._refused = before, found
            return str(e)
        self._refused = None
        return ""

    def _besides(self, configured: Sequence[EngineEndpoint]) -> list[EngineEndpoint]:
        """What was found and is not configured under the same name or address already."""
        names, urls = {e.name for e in configured if e.name}, {e.url for e in configured}
        return [e for e in self._found if e.name not in names and e.url not in urls]

    def _make(self, name: str, endpoint: EngineEndpoint) -> Worker:
        assert self._session is not None
        client = engine_client(
            name, endpoint, self._default_token, self._session, self._upstream, self._metrics, self._tls
        )
        return Worker(endpoint, client, self._settings, self._metrics, self._rows)

    def _forget(self, name: str) -> None:
        self._lost(name)
        self._rows.forget(name)

    def _lost(self, name: str) -> None:
        self._policy.lost(name)
        if self._events is not None:
            self._events.lost(name)

    def route_request(
        self, ids: NDArray[np.uint32], items: Sequence[Item], salt: str | None, session: str = ""
    ) -> RouteRequest:
        """What the policy looks at; costs about 2 us per block, nothing for policies that ignore prompts."""
        size = self._settings.block_tokens
        wanted = self._settings.policy == "prefix_aware" and len(self.workers) > 1
        names = block_names(ids, items, salt, size) if wanted else ()
        if items and self._events is not None:
            self._events.sentinels.remember(i.hash for i in items)
        return RouteRequest(len(ids), names, size, session)

    def pick(self, request: RouteRequest, *, exclude: frozenset[str] = frozenset()) -> tuple[Worker, int]:
        """(worker, prompt tokens it will probably have to compute). Raises ApiError("engine_unavailable")."""
        left = [w for w in self.workers if w.open() and w.name not in exclude]
        # With every breaker open the sick engines are still a better chance than a certain refusal.
        usable = [w for w in left if w.usable()] or left
        if not usable:
            raise ApiError("engine_unavailable", "no engine is available at the moment; try again")
        only = len(usable) == 1
        choice = (
            Choice(usable[0].name, "only") if only else self._policy.choose(self.elsewhere.with_ours(usable), request)
        )
        self._policy.sent(choice.name, request)
        if self.on_sent is not None and request.names:
            self.on_sent(choice.name, request)
        child(self._metrics.routing_decisions, self._settings.policy, choice.reason).inc()
        worker = next(w for w in usable if w.name == choice.name)
        return worker, max(0, request.prompt_tokens - choice.cached_tokens)

    async def meet(self) -> bool:
        """Waits until engines that are new, and were never asked for their health, have been: where all are replaced at once
        nobody else could serve. False when there are none."""
        if self._meeting is None or self._meeting.done():
            new = [w for w in self.workers if not w.asked]
            if not new:
                return False
            self._meeting = asyncio.gather(*(self._check(w) for w in new))
        await asyncio.shield(self._meeting)
        return True

    def loads(self) -> dict[str, Load]:
        """What this process runs on each engine, for `elsewhere` of the others."""
        return {w.name: own_load(w) for w in self.workers if w.in_flight}

    def heard(self, name: str, request: RouteRequest) -> None:
        """Another process of this command sent `request` to the engine `name`."""
        if any(w.name == name for w in self.workers):
            self._policy.sent(name, request)

    def others(self, tried: Collection[str]) -> bool:
        """Whether a worker is left to try."""
        return any(w.open() and w.name not in tried for w in self.workers)

    def failed(self, name: str) -> None:
        """An engine broke off an answer: counts towards its breaker, and it is asked for its health at once."""
        worker = self._fleet.find(name)
        if worker is not None:
            worker.failed()
        self._look.set()

    def gone(self, worker: Worker) -> None:
        """The engine refused a connection: /ready says so from now on, until a health check finds it up."""
        if worker in self.workers and worker.unreachable():
            self._lost(worker.name)
        self._look.set()

    @property
    def ready(self) -> bool:
        return any(w.open() for w in self.workers)

    @property
    def context_length(self) -> int | None:
        """The smallest context among the engines that have told theirs."""
        return min((w.context_length for w in self.workers if w.context_length), default=None)

    async def _watch(self) -> None:
        while True:
            interval = self._settings.health_interval_s
            with suppress(TimeoutError):
                async with asyncio.timeout(interval if self.ready else min(interval, STARTING_INTERVAL_S)):
                    await self._look.wait()
            self._look.clear()
            self._fleet.sweep()
            self._tls.refresh()
            if self._refused is not None and not self._use(self._refused):  # another model may have given a name back
                log.info("the engines that could not be used are in use now")
            await self._check_all()
            if self._settings.outliers.enabled:
                for worker, reason in outliers(self.workers, self._settings.outliers):
                    worker.eject(reason)

    async def _check_all(self) -> None:
        await asyncio.gather(*(self._check(w) for w in self.workers))

    async def _check(self, worker: Worker) -> None:
        status = await worker.client.status(self._settings.health_timeout_s)
        if status.vocab_size and self._vocab_size and status.vocab_size != self._vocab_size:
            # Its ids would be other words: garbage in the best case, an error blamed on the client in the next.
            detail = f"it serves another model: {status.vocab_size} vocabulary entries, this checkpoint has {self._vocab_size}"
            status = EngineStatus(False, detail=detail)
        if worker not in self.workers:  # it left while it was asked
            return
        was_healthy = worker.healthy
        if worker.take_status(status):
            self._lost(worker.name)
        if self._events is not None:
            if worker.healthy and not was_healthy:
                self._events.up(worker)
            self._metrics.prefix_index_exact.labels(worker.name).set(self.index_is_exact(worker.name))

"""Finds out which engines publish KV events and keeps a subscriber per cache of theirs, while they are up.

SGLang says in `GET /server_info` under `kv_events` where it publishes; the host is that of the engine's URL. An engine that
does not say, or whose events cannot be had, is guessed at as before."""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from gateway.metrics import Metrics
from gateway.routing.discovery.base import authority
from gateway.routing.known_prefixes import KnownPrefixes
from gateway.routing.kv_events.index import ExactIndex
from gateway.routing.kv_events.sentinels import Sentinels
from gateway.routing.settings import RoutingSettings
from gateway.routing.worker import Worker

log = logging.getLogger("catalejo.kv_events")
MIN_BLOCK_TOKENS: Final = 8
"""Smaller pages make an event of every few tokens: following them costs more than a guess."""
SLACK: Final = 16
"""Caches in main memory and on disk hold more than the GPU; beyond this times the configured size something is wrong."""
RETRY_S: Final = 10.0


class Publisher(BaseModel):
    """What /server_info says."""

    publisher: str
    endpoint_port_base: int = Field(ge=1, le=65535)
    topic: str = Field(default="", max_length=256)
    block_size: int = Field(ge=1)
    dp_size: int = Field(default=1, ge=1, le=1024)
    replay_endpoint_port_base: int | None = Field(default=None, ge=1, le=65535)


class KvEvents:
    def __init__(self, prefixes: KnownPrefixes, settings: RoutingSettings, metrics: Metrics) -> None:
        self.sentinels = Sentinels()
        self._prefixes = prefixes
        self._settings = settings
        self._metrics = metrics
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def up(self, worker: Worker) -> None:
        """The engine is (again) up: whether and where it publishes is asked anew."""
        self.lost(worker.name)
        self._tasks[worker.name] = asyncio.create_task(self._follow(worker), name=f"KV events of {worker.name}")

    def lost(self, name: str) -> None:
        self._prefixes.unfollow(name)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for name in list(self._tasks):
            self.lost(name)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, worker: Worker) -> None:
        while True:
            try:
                told = await worker.client.kv_events(self._settings.health_timeout_s)
                if told is None:
                    return
                publisher = Publisher.model_validate(told)
            except ValidationError as e:
                log.warning(
                    "engine %s describes its KV events in a way not known here: %s", worker.name, e.errors()[0]["msg"]
                )
                return
            except OSError as e:
                log.warning("engine %s did not say where it publishes KV events: %s", worker.name, type(e).__name__)
                await asyncio.sleep(RETRY_S)
                continue
            if publisher.publisher != "zmq" or publisher.block_size < MIN_BLOCK_TOKENS:
                log.info("KV events of engine %s are not followed: %s, pages of %d tokens", worker.name, publisher.publisher,
                         publisher.block_size)  # fmt: skip
                return
            await self._subscribe(worker, publisher)

    async def _subscribe(self, worker: Worker, publisher: Publisher) -> None:
        """Until it is cancelled, or a subscriber fails."""
        from gateway.routing.kv_events.subscriber import Subscriber  # ZeroMQ is loaded only where it is spoken

        host = urlsplit(worker.client.url).hostname or ""
        blocks = SLACK * self._settings.index_tokens_per_worker // publisher.block_size + 1

        def at(base: int | None, rank: int) -> str | None:
            return None if base is None else f"tcp://{authority(host, base + rank)}"

        def count(outcome: str) -> None:
            self._metrics.kv_events.labels(worker.name, outcome).inc()

        followers = [
            Subscriber(
                worker.name,
                at(publisher.endpoint_port_base, rank) or "",
                at(publisher.replay_endpoint_port_base, rank),
                publisher.topic,
                ExactIndex(self._settings.block_tokens, blocks, self.sentinels.word),
                count,
            )
            for rank in range(publisher.dp_size)
        ]
        self._prefixes.follow(worker.name, followers)
        log.info("following the KV events of engine %s (%d caches)", worker.name, len(followers))
        try:
            async with asyncio.TaskGroup() as group:
                for follower in followers:
                    group.create_task(follower.run())
        except* Exception as group_error:
            log.error("following the KV events of engine %s failed: %r", worker.name, group_error.exceptions[0])
            self._prefixes.unfollow(worker.name)
            await asyncio.sleep(RETRY_S)

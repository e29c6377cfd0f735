"""Limits that all replicas share, in Redis 5 or newer: one hash per bucket, one sorted set per tenant with places.

Every question is one atomic script on one key and uses Redis's own clock, so gateways' clocks do not matter. A place is a
lease: renewed while its gateway lives, free again `redis_lease_s` after its gateway died.
No request waits longer than `redis_timeout_s` for an answer. When Redis is away the gateway's own limits hold
(`redis_fail_open`) or what has a limit is refused; it is asked again every second, by one request at a time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from gateway.admission.gate import GateFull
from gateway.admission.limits import Kind, Rates, Reading
from gateway.admission.redis_scripts import BUCKET, ENTER, LEAVE, RENEW
from gateway.admission.settings import AdmissionSettings
from gateway.errors import ApiError
from gateway.metrics import Metrics

T = TypeVar("T")
log = logging.getLogger("catalejo.admission")

RETRY_S: Final = 1.0
"""While Redis is away, one question in so long tries whether it is back."""
CONNECTIONS: Final = 32
POLL_S: Final = (0.02, 0.25)
"""A tenant's first waiter asks for a place again after the first, growing to the second."""

RENEW_AT_ONCE: Final = 500


class RedisLimits:
    """Rates and leases (gateway/admission/limits.py, places.py). `fallback` counts while Redis is away."""

    def __init__(self, settings: AdmissionSettings, fallback: Rates, metrics: Metrics) -> None:
        assert settings.redis_url is not None
        self._settings = settings
        self._fallback = fallback
        self._metrics = metrics
        self._client = _client(settings)
        self._bucket = self._client.register_script(BUCKET)
        self._enter = self._client.register_script(ENTER)
        self._renew = self._client.register_script(RENEW)
        self._leave_script = self._client.register_script(LEAVE)
        self._up: bool | None = None
        self._ask_at = 0.0
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._waiting: Counter[str] = Counter()
        self._turn: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._freed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._renewer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._ask(self._ping)
        self._renewer = asyncio.create_task(self._renew_for_ever(), name="redis leases")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.gather(self._renewer, return_exceptions=True)
        deadline = monotonic() + self._settings.redis_timeout_s * 2
        while self._tasks and (left := deadline - monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        while self._tasks:  # what ends may have something to undo
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    # ------------------------------------------------------------------------------------------- rates
    async def take(self, tenant: str, kind: Kind, per_minute: int, units: float) -> Reading:
        key = self._key(kind, tenant)

        def undo(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and task.exception() is None and float(task.result()[1]) == 0:
                self.correct(tenant, kind, per_minute, -units)

        got = await self._ask(lambda: self._bucket(keys=[key], args=[per_minute, units, "take"]), undo)
        if got is not None:
            return Reading(float(got[0]), float(got[1]))
        self._refuse_if_closed()
        return await self._fallback.take(tenant, kind, per_minute, units)

    def correct(self, tenant: str, kind: Kind, per_minute: int, units: float) -> None:
        self._spawn(self._correct(tenant, kind, per_minute, units))

    async def _correct(self, tenant: str, kind: Kind, per_minute: int, units: float) -> None:
        key = self._key(kind, tenant)
        if await self._ask(lambda: self._bucket(keys=[key], args=[per_minute, units, "correct"])) is None:
            self._fallback.correct(tenant, kind, per_minute, units)

    # ------------------------------------------------------------------------------------------- leases
    @property
    def waiting(self) -> int:
        return self._waiting.total()

    async def enter(
        self, tenant: str, limit: int, max_queue: int, on_wait: Callable[[int], None]
    ) -> Callable[[], None]:
        lease = secrets.token_hex(12)
        turn = self._turn[tenant]
        if turn.locked() or not await self._try(tenant, lease, limit):
            if self._waiting[tenant] >= max_queue:
                raise GateFull("tenant", self._waiting[tenant])
            self._waiting[tenant] += 1
            on_wait(self.waiting)
            try:
                async with turn:  # in order of arrival, and one question at a time
                    await self._poll(tenant, lease, limit)
            finally:
                self._waiting[tenant] -= 1
        return partial(self._leave, tenant, lease)

    async def _poll(self, tenant: str, lease: str, limit: int) -> None:
        delay, freed = POLL_S[0], self._freed[tenant]
        while not await self._try(tenant, lease, limit):
            freed.clear()
            try:
                async with asyncio.timeout(delay):
                    await freed.wait()
            except TimeoutError:
                delay = min(delay * 1.5, POLL_S[1])

    async def _try(self, tenant: str, lease: str, limit: int) -> bool:
        """Without an answer the gateway's own gate is the limit (it has the same one)."""
        held, key = self._held[tenant], self._key("places", tenant)
        args: list[str | int] = [lease, limit, int(self._settings.redis_lease_s * 1000)]

        def undo(task: asyncio.Task[Any]) -> None:
            self._spawn(self._give_back(tenant, lease))

        got = await self._ask(lambda: self._enter(keys=[key], args=args), undo)
        if got is None:
            self._refuse_if_closed()
        if got == 0:
            return False
        held.add(lease)
        return True

    def _leave(self, tenant: str, lease: str) -> None:
        self._held[tenant].discard(lease)
        self._spawn(self._give_back(tenant, lease))

    async def _give_back(self, tenant: str, lease: str) -> None:
        await self._ask(lambda: self._leave_script(keys=[self._key("places", tenant)], args=[lease]))
        self._freed[tenant].set()

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.redis_lease_s / 3)
            await self._ask(self._ping)  # also tells when Redis is away or back while nobody asks
            ttl = int(self._settings.redis_lease_s * 1000)
            for tenant, held in list(self._held.items()):
                leases = list(held)
                for i in range(0, len(leases), RENEW_AT_ONCE):
                    await self._renew_some(tenant, ttl, leases[i : i + RENEW_AT_ONCE])

    async def _renew_some(self, tenant: str, ttl: int, leases: list[str]) -> None:
        await self._ask(lambda: self._renew(keys=[self._key("places", tenant)], args=[ttl, *leases]))
        # Those that ended meanwhile may have been brought back by this renewal.
        for lease in leases:
            if lease not in self._held[tenant]:
                self._spawn(self._give_back(tenant, lease))

    # ------------------------------------------------------------------------------------------- asking
    async def _ask(
        self, question: Callable[[], Coroutine[Any, Any, T]], undo: Callable[[asyncio.Task[T]], None] | None = None
    ) -> T | None:
        """The answer, or None when there is none in time or Redis is known to be away. A question is never cancelled, since
        that would cost its connection: when nobody waits any more it ends by itself and then `undo` is called."""
        now = monotonic()
        if not self._up and now < self._ask_at:
            return None
        self._ask_at = now + RETRY_S
        task = self._spawn(question())
        try:
            done, _ = await asyncio.wait({task}, timeout=self._settings.redis_timeout_s)
        except asyncio.CancelledError:
            if undo is not None:
                task.add_done_callback(undo)
            raise
        error = task.exception() if done else TimeoutError()
        if error is None:
            self._set_up(True)
            return task.result()
        if not isinstance(error, RedisError | OSError):
            raise error
        if undo is not None and not self._settings.redis_fail_open:
            task.add_done_callback(undo)
        self._metrics.redis_failures.inc()
        self._set_up(False, type(error).__name__)
        return None

    async def _ping(self) -> bool:
        answer = self._client.ping()  # typed for the library's two forms at once
        return bool(await answer) if isinstance(answer, Awaitable) else answer

    def _set_up(self, up: bool, why: str = "") -> None:
        was, self._up = self._up, up
        self._metrics.redis_up.set(up)
        if was == up:
            return
        if not up:
            then = "this gateway's own limits hold" if self._settings.redis_fail_open else "requests are refused"
            log.warning("redis does not answer (%s); until it does, %s", why, then)
        elif was is False:
            log.info("redis answers again; limits are shared")

    def _refuse_if_closed(self) -> None:
        if not self._settings.redis_fail_open:
            self._metrics.refused.labels("redis").inc()
            raise ApiError("overloaded", "the limits cannot be checked at the moment; try again")

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has seen it, unless he no longer waited

    def _key(self, kind: str, tenant: str) -> str:
        return f"{self._settings.redis_prefix}:{kind}:{tenant}"


async def problem_of(settings: AdmissionSettings) -> str | None:
    """One sentence when Redis cannot be used, for `catalejo doctor`."""
    async with _client(settings) as client:
        try:
            async with asyncio.timeout(5):
                await client.register_script(BUCKET)(keys=[f"{settings.redis_prefix}:doctor"], args=[60, 0, "take"])
        except (RedisError, OSError, TimeoutError) as error:
            return f"{type(error).__name__} {error}".strip() + "; see admission.redis_url and the settings beside it"
    return None


def _client(settings: AdmissionSettings) -> redis.Redis:
    assert settings.redis_url is not None
    given: dict[str, Any] = {}
    if settings.redis_username is not None:
        given["username"] = settings.redis_username
    if settings.redis_password is not None:
        given["password"] = settings.redis_password.get_secret_value()
    if settings.redis_ca_file is not None:
        given["ssl_ca_certs"] = str(settings.redis_ca_file)
    pool = redis.BlockingConnectionPool.from_url(
        settings.redis_url.get_secret_value(),
        max_connections=CONNECTIONS,
        timeout=settings.redis_timeout_s,
        socket_connect_timeout=settings.redis_timeout_s,
        socket_timeout=settings.redis_timeout_s,
        # One more try on a connection that had gone stale; a question that was heard is not asked twice.
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        **given,
    )
    return redis.Redis.from_pool(pool)  # closing it closes the pool

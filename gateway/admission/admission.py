"""Who may, how much, and when: keys, limits per tenant, a bounded number of places with a fair queue before them.

A permit is held around the whole stream, as an async context manager or by `enter` and `leave`, so the place comes back on
every path. Tokens are charged when the prompt is known and corrected when the answer is: estimate = prompt tokens,
correction = answer tokens.
Where buckets and places live is not known here: this process, the supervisor of `--workers N`, Redis (docs/operations.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from time import monotonic
from types import TracebackType
from typing import Self

from gateway.admission.gate import Gate, GateFull
from gateway.admission.keys import KeyRing
from gateway.admission.limits import Kind, LocalRates, Rates, Reading
from gateway.admission.model_places import MakeGate, ModelPlaces, no_place
from gateway.admission.places import Leases, Leave, Places
from gateway.admission.settings import AdmissionSettings, Limits
from gateway.errors import ApiError
from gateway.metrics import Metrics


class _Account:
    """One tenant: its limits, and what its buckets showed last."""

    def __init__(self, name: str, limits: Limits, priority: int) -> None:
        self.name = name
        self.limits = limits
        self.priority = priority
        self.per_minute: dict[Kind, int | None] = {
            "requests": limits.requests_per_minute,
            "tokens": limits.tokens_per_minute,
            "media": limits.media_per_minute,
        }
        self.levels: dict[Kind, float] = {}

    def has(self, limits: Limits, priority: int) -> bool:
        return (self.limits, self.priority) == (limits, priority)

    def headers(self, kind: Kind) -> dict[str, str]:
        """OpenAI's rate limit headers; none without that limit."""
        per_minute = self.per_minute[kind]
        if per_minute is None:
            return {}
        level = self.levels.get(kind, float(per_minute))
        return {
            f"x-ratelimit-limit-{kind}": str(per_minute),
            f"x-ratelimit-remaining-{kind}": str(max(0, int(level))),
            f"x-ratelimit-reset-{kind}": f"{(per_minute - level) * 60 / per_minute:.3f}s",
        }


class Permit:
    """The places of one generation, at a model and in the gateway, and the account it is charged to."""

    __slots__ = ("_account", "_admission", "_leave", "_leave_model", "model", "tenant")

    def __init__(self, admission: Admission, tenant: str, model: str) -> None:
        self.tenant = tenant
        self.model = model
        self._admission = admission
        self._leave_model: Leave = no_place
        self._leave: Leave = no_place

    async def enter(self) -> Self:
        """Returns once the places are held. Raises ApiError: queue_full, or overloaded after queue_timeout_s."""
        self._account, self._leave_model, self._leave = await self._admission.enter(self.tenant, self.model)
        return self

    def leave(self) -> None:
        """Gives the places back."""
        self._leave_model()
        self._leave()
        self._admission.left()

    async def __aenter__(self) -> Self:
        return await self.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def priority(self) -> int:
        return self._account.priority

    async def move(self, model: str) -> bool:
        """Changes the place at one model for one at another, unless that one is full. Never waits for one: it holds a place of
        the gateway, which those in front of it may be waiting for."""
        leave = await self._admission.models.take_now(model, self.tenant)
        if leave is None:
            return False
        self._leave_model()
        self._leave_model = leave
        return True

    async def charge(self, prompt_tokens: int) -> None:
        """Raises ApiError("rate_limit_exceeded") when the tenant's tokens per minute do not allow the prompt."""
        await self._admission.take(self._account, "tokens", prompt_tokens, f"this prompt has {prompt_tokens} tokens")

    def settle(self, answer_tokens: int) -> None:
        self._admission.correct(self._account, "tokens", answer_tokens)

    @property
    def headers(self) -> dict[str, str]:
        """For the limits that exist."""
        return self._account.headers("requests") | self._account.headers("tokens")


class Admission:
    """`rates`, `places` and `model_gate` default to this process's own."""

    def __init__(
        self,
        settings: AdmissionSettings,
        metrics: Metrics,
        clock: Callable[[], float] = monotonic,
        *,
        rates: Rates | None = None,
        places: Places | None = None,
        model_gate: MakeGate | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._keys = KeyRing(settings)
        self._accounts = {name: _Account(name, limits, p) for name, (limits, p) in self._keys.tenants.items()}
        self._rates: Rates = rates or LocalRates(clock)
        self._gate: Places = places or Gate(settings.max_in_flight, settings.max_queue)
        self.models = ModelPlaces(model_gate)
        self._leases: Leases | None = None
        self._running = AsyncExitStack()
        if settings.redis_url is not None:
            from gateway.admission.redis_limits import RedisLimits

            shared = RedisLimits(settings, self._rates, metrics)
            self._rates, self._leases = shared, shared

    async def __aenter__(self) -> Self:
        if self._leases is not None:
            await self._running.enter_async_context(self._leases)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._running.aclose()

    def apply(self, settings: AdmissionSettings) -> None:
        """Other keys, tenants and limits from now on. Who runs or waits goes on under the rules it came in by; what a tenant
        has used of its minute stays used. Settings of Redis are not looked at. Raises ValueError, and changes nothing then."""
        keys = KeyRing(settings)
        old = self._accounts
        self._accounts = {
            name: old[name] if name in old and old[name].has(limits, priority) else _Account(name, limits, priority)
            for name, (limits, priority) in keys.tenants.items()
        }
        self._keys, self._settings = keys, settings
        self._gate.resize(settings.max_in_flight, settings.max_queue)

    def _account(self, tenant: str) -> _Account:
        """Raises ApiError: the tenant's last key may have been taken away since it was checked."""
        try:
            return self._accounts[tenant]
        except KeyError:
            raise ApiError("invalid_api_key", "this API key is no longer valid") from None

    def authenticate(self, headers: Mapping[str, str]) -> str:
        """The tenant's name. Raises ApiError("invalid_api_key")."""
        try:
            return self._keys.authenticate(headers)
        except ApiError:
            self._count("key")
            raise

    def scopes(self, tenant: str) -> frozenset[str]:
        return self._keys.scopes[tenant]

    async def admit(self, tenant: str, media: int = 0) -> None:
        """Counts one request and its pictures and videos. Raises ApiError("rate_limit_exceeded") when the tenant has had its
        share of the minute."""
        account = self._account(tenant)
        await self.take(account, "requests", 1)
        if media:
            await self.take(account, "media", media, f"this request has {media} pictures and videos")

    async def take(self, account: _Account, kind: Kind, units: int, detail: str = "") -> None:
        per_minute = account.per_minute[kind]
        if per_minute is None:
            return
        reading = await self._rates.take(account.name, kind, per_minute, units)
        account.levels[kind] = reading.level
        if reading.wait_s > 0:
            self._count(f"{kind}_per_minute")
            raise _limited(account, kind, reading, detail)

    def correct(self, account: _Account, kind: Kind, units: int) -> None:
        per_minute = account.per_minute[kind]
        if per_minute is not None and units:
            self._rates.correct(account.name, kind, per_minute, units)

    def acquire(self, tenant: str, model: str = "") -> Permit:
        """For a generation by `model`; to be entered."""
        return Permit(self, tenant, model)

    @property
    def _waiting(self) -> int:
        return self._gate.waiting + (self._leases.waiting if self._leases is not None else 0)

    async def enter(self, tenant: str, model: str) -> tuple[_Account, Leave, Leave]:
        """The tenant's account, and what gives back the places at the model and in the gateway. Raises as Permit.enter."""
        account = self._account(tenant)
        if (places := self._enter_now(account, model)) is not None:
            self._metrics.queue_seconds.observe(0.0)
        else:
            began = monotonic()
            places = await self._wait(account, model)
            self._metrics.queue_seconds.observe(monotonic() - began)
        self._metrics.admitted.set(self._gate.in_flight)
        return account, *places

    def left(self) -> None:
        """A permit gave its places back."""
        self._metrics.admitted.set(self._gate.in_flight)
        self._metrics.queue_depth.set(self._waiting)

    def _enter_now(self, account: _Account, model: str) -> tuple[Leave, Leave] | None:
        """What most requests find: both places free, nobody waiting and nobody else to ask. Needs no clock."""
        if self._leases is not None or (leave_model := self.models.take(model, account.name)) is None:
            return None
        if (leave := self._gate.try_enter(account.name, account.limits.max_in_flight)) is None:
            leave_model()
            return None
        return leave_model, leave

    async def _wait(self, account: _Account, model: str) -> tuple[Leave, Leave]:
        try:
            async with asyncio.timeout(self._settings.queue_timeout_s):
                leave_model = await self.models.enter(model, account.name, account.priority)
                try:
                    return leave_model, await self._place(account)
                except BaseException:
                    leave_model()
                    raise
        except GateFull as full:
            self._count("queue_full")
            whose = "of yours are" if full.whose == "tenant" else "are"
            raise ApiError("queue_full", f"{full.waiting} requests {whose} waiting already; try again later") from None
        except TimeoutError:
            self._count("queue_timeout")
            message = f"no place became free within {self._settings.queue_timeout_s:g} s"
            raise ApiError("overloaded", message) from None
        finally:
            self._metrics.queue_depth.set(self._waiting)

    async def _place(self, account: _Account) -> Leave:
        name, limits = account.name, account.limits
        with ExitStack() as held:
            # The tenant's place among all replicas first: whoever waits for that one must not hold one of this gateway's.
            if self._leases is not None and limits.max_in_flight is not None:
                queue = limits.max_queue if limits.max_queue is not None else self._settings.max_queue
                held.callback(await self._leases.enter(name, limits.max_in_flight, queue, self._show_waiting))
            leave = await self._gate.enter(
                name,
                priority=account.priority,
                limit=limits.max_in_flight,
                max_queue=limits.max_queue,
                on_wait=self._show_waiting,
            )
            held.callback(leave)
            return held.pop_all().close
        raise AssertionError("unreachable")

    def _show_waiting(self, waiting: int) -> None:
        self._metrics.queue_depth.set(self._waiting)

    def _count(self, reason: str) -> None:
        self._metrics.refused.labels(reason).inc()


def _limited(account: _Account, kind: Kind, reading: Reading, detail: str) -> ApiError:
    message = (
        f"the limit is {account.per_minute[kind]} {kind} per minute; try again in {max(1, round(reading.wait_s))} s"
    )
    if detail:
        message += f" ({detail})"
    return ApiError("rate_limit_exceeded", message, retry_after_s=reading.wait_s + 0.5, headers=account.headers(kind))

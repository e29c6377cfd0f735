"""Who may, how much, and when: keys, limits per tenant, a bounded number of places with a fair queue before them.

A permit is an async context manager around the whole stream, so the place comes back on every path. Tokens are charged when
the prompt is known and corrected when the answer is: estimate = prompt tokens, correction = answer tokens.
State is per process; docs/operations.md says what that means for several workers and replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic

from gateway.admission.gate import Gate, GateFull
from gateway.admission.keys import KeyRing
from gateway.admission.limits import Bucket
from gateway.admission.model_places import ModelPlace, ModelPlaces
from gateway.admission.settings import AdmissionSettings, Limits
from gateway.errors import ApiError
from gateway.metrics import Metrics


class _Account:
    """One tenant's limits and buckets."""

    def __init__(self, limits: Limits, priority: int, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.priority = priority
        self.requests = Bucket(limits.requests_per_minute, clock) if limits.requests_per_minute else None
        self.tokens = Bucket(limits.tokens_per_minute, clock) if limits.tokens_per_minute else None


class Permit:
    """A place held, and the account it is charged to."""

    def __init__(
        self,
        account: _Account,
        refused: Callable[[str], None],
        models: ModelPlaces,
        tenant: str,
        model_place: ModelPlace,
    ) -> None:
        self._account = account
        self._refused = refused
        self._models = models
        self._tenant = tenant
        self._model_place = model_place
        self.priority = account.priority

    def move(self, model: str) -> bool:
        """Changes the place at one model for one at another, unless that one is full. Never waits: it holds a place of
        the gateway, which those in front of it may be waiting for."""
        place = self._models.take(model, self._tenant)
        if place is None:
            return False
        self._model_place.leave()
        self._model_place = place
        return True

    def leave(self) -> None:
        self._model_place.leave()

    def charge(self, prompt_tokens: int) -> None:
        """Raises ApiError("rate_limit_exceeded") when the tenant's tokens per minute do not allow the prompt."""
        bucket = self._account.tokens
        if bucket is None:
            return
        wait = bucket.take(prompt_tokens)
        if wait > 0:
            self._refused("tokens_per_minute")
            raise _limited("tokens", bucket, wait, f"this prompt has {prompt_tokens} tokens")

    def settle(self, answer_tokens: int) -> None:
        if self._account.tokens is not None:
            self._account.tokens.correct(answer_tokens)

    @property
    def headers(self) -> dict[str, str]:
        """OpenAI's rate limit headers, for the limits that exist."""
        out: dict[str, str] = {}
        for name, bucket in (("requests", self._account.requests), ("tokens", self._account.tokens)):
            if bucket is not None:
                out |= _headers(name, bucket)
        return out


class Admission:
    def __init__(self, settings: AdmissionSettings, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._settings = settings
        self._metrics = metrics
        self._keys = KeyRing(settings)
        self._accounts = {name: _Account(limits, p, clock) for name, (limits, p) in self._keys.tenants.items()}
        self._gate = Gate(settings.max_in_flight, settings.max_queue)
        self.models = ModelPlaces()

    def authenticate(self, headers: Mapping[str, str]) -> str:
        """The tenant's name. Raises ApiError("invalid_api_key")."""
        try:
            return self._keys.authenticate(headers)
        except ApiError:
            self._count("key")
            raise

    def admit(self, tenant: str) -> None:
        """Counts one request. Raises ApiError("rate_limit_exceeded") when the tenant has had its share of the minute."""
        account = self._accounts[tenant]
        if account.requests is not None and (wait := account.requests.take(1)) > 0:
            self._count("requests_per_minute")
            raise _limited("requests", account.requests, wait)

    @asynccontextmanager
    async def acquire(self, tenant: str, model: str = "") -> AsyncIterator[Permit]:
        """A place for a generation by `model`. Raises ApiError: queue_full, or overloaded after queue_timeout_s."""
        account = self._accounts[tenant]
        model_place = await self._enter(tenant, account, model)
        self._metrics.admitted.set(self._gate.in_flight)
        permit = Permit(account, self._count, self.models, tenant, model_place)
        try:
            yield permit
        finally:
            permit.leave()
            self._gate.leave(tenant)
            self._metrics.admitted.set(self._gate.in_flight)
            self._metrics.queue_depth.set(self._gate.waiting)

    async def _enter(self, tenant: str, account: _Account, model: str) -> ModelPlace:
        began = monotonic()
        limits = account.limits
        try:
            async with asyncio.timeout(self._settings.queue_timeout_s):
                model_place = await self.models.enter(model, tenant, account.priority)
                try:
                    await self._gate.enter(
                        tenant,
                        priority=account.priority,
                        limit=limits.max_in_flight,
                        max_queue=limits.max_queue,
                        on_wait=self._metrics.queue_depth.set,
                    )
                except BaseException:
                    model_place.leave()
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
            self._metrics.queue_depth.set(self._gate.waiting)
        self._metrics.queue_seconds.observe(monotonic() - began)
        return model_place

    def _count(self, reason: str) -> None:
        self._metrics.refused.labels(reason).inc()


def _limited(what: str, bucket: Bucket, wait_s: float, detail: str = "") -> ApiError:
    message = f"the limit is {bucket.per_minute} {what} per minute; try again in {max(1, round(wait_s))} s"
    if detail:
        message += f" ({detail})"
    return ApiError("rate_limit_exceeded", message, retry_after_s=wait_s + 0.5, headers=_headers(what, bucket))


def _headers(what: str, bucket: Bucket) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{what}": str(bucket.per_minute),
        f"x-ratelimit-remaining-{what}": str(bucket.remaining),
        f"x-ratelimit-reset-{what}": f"{bucket.full_in_s:.3f}s",
    }

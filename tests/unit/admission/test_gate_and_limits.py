"""Places come back on every path, nobody starves, and limits refill with time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from pydantic import ValidationError

from gateway.admission.admission import Admission
from gateway.admission.gate import Gate, GateFull
from gateway.admission.keys import KeyRing, digest
from gateway.admission.limits import Bucket
from gateway.admission.settings import AdmissionSettings
from gateway.errors import ApiError
from gateway.metrics import Metrics


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def waiting(gate: Gate, *tenants: str, **more: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(gate.enter(t, **more)) for t in tenants]
    await asyncio.sleep(0)
    return tasks


async def order(gate: Gate, tasks: dict[str, asyncio.Task[None]], first: str) -> list[str]:
    """Lets one leave at a time and says who came in."""
    got, inside = [], [first]
    while len(got) < len(tasks):
        gate.leave(inside.pop())
        await asyncio.sleep(0)
        for name, task in tasks.items():
            if task.done() and name not in got:
                got.append(name)
                inside.append(name.rstrip("0123456789"))
    return got


async def test_a_single_request_does_not_wait_behind_anothers_flood() -> None:
    gate = Gate(places=2, max_queue=100)
    await gate.enter("flood")
    await gate.enter("flood")
    flood = await waiting(gate, *["flood"] * 10)
    [single] = await waiting(gate, "small")
    gate.leave("flood")
    await asyncio.sleep(0)
    assert single.done() and not any(t.done() for t in flood)
    for task in flood:
        task.cancel()


async def test_higher_priority_goes_first_then_order_of_arrival() -> None:
    gate = Gate(places=1, max_queue=10)
    await gate.enter("x")
    tasks: dict[str, asyncio.Task[None]] = {}
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        [tasks[name]] = await waiting(gate, name, priority=priority)
    assert await order(gate, tasks, "x") == ["b", "d", "a", "c"]


async def test_a_tenant_at_its_own_limit_does_not_hold_up_others() -> None:
    gate = Gate(places=10, max_queue=10)
    await gate.enter("a", limit=1)
    [second] = await waiting(gate, "a", limit=1)
    await asyncio.wait_for(gate.enter("b", limit=1), 1)
    assert not second.done()
    gate.leave("a")
    await asyncio.wait_for(second, 1)


async def test_queue_bounds_of_all_and_of_one_tenant() -> None:
    gate = Gate(places=1, max_queue=2)
    await gate.enter("a")
    tasks = await waiting(gate, "a", "a")
    with pytest.raises(GateFull) as full:
        await gate.enter("b")
    assert (full.value.whose, full.value.waiting) == ("all", 2)
    with pytest.raises(GateFull) as full:
        await gate.enter("a", max_queue=1)
    assert full.value.whose == "tenant"
    for task in tasks:
        task.cancel()


async def test_cancelled_waiters_give_everything_back() -> None:
    gate = Gate(places=3, max_queue=1000)
    rng = __import__("random").Random(0)
    held: Counter[str] = Counter()

    async def one(tenant: str) -> None:
        await gate.enter(tenant)
        held[tenant] += 1
        try:
            await asyncio.sleep(rng.random() * 0.003)
        finally:
            held[tenant] -= 1
            gate.leave(tenant)

    tasks = [asyncio.create_task(one(rng.choice("abc"))) for _ in range(300)]
    for task in tasks:
        if rng.random() < 0.5:
            await asyncio.sleep(0)
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (gate.in_flight, gate.waiting, +held) == (0, 0, Counter())


def test_bucket_refills_continuously_and_debts_are_paid() -> None:
    clock = Clock()
    bucket = Bucket(60, clock)
    assert all(bucket.take(1).wait_s == 0 for _ in range(60))
    assert bucket.take(1).wait_s == pytest.approx(1.0)
    clock.now += 1
    assert bucket.take(1).wait_s == 0
    bucket.correct(30)
    assert bucket.take(1).wait_s == pytest.approx(31.0)
    clock.now += 1000
    assert bucket.remaining == 60
    assert bucket.take(600).wait_s == 0  # larger than the bucket: from a full one
    assert bucket.take(1).wait_s == pytest.approx(541.0)


def settings(**fields: object) -> AdmissionSettings:
    return AdmissionSettings.model_validate(fields)


def test_keys_by_hash_and_plain_reach_their_tenant() -> None:
    ring = KeyRing(
        settings(tenants=[{"name": "acme", "api_keys": ["k1"], "api_key_hashes": [digest("k2")]}], api_keys=["k3"])
    )
    assert (
        ring.authenticate({"authorization": "Bearer k1"}) == ring.authenticate({"authorization": "bearer k2"}) == "acme"
    )
    assert ring.authenticate({"x-api-key": "k3"}).startswith("key-")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic k1"}, {"authorization": "Bearer "}):
        with pytest.raises(ApiError) as refused:
            ring.authenticate(headers)
        assert refused.value.status == 401


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tenants": [{"name": "a"}]}, "neither"),
        ({"tenants": [{"name": "a", "api_key_hashes": ["sha1:00"]}]}, "blake2b"),
        ({"tenants": [{"name": "a b", "api_keys": ["k"]}]}, "pattern"),
        ({"tenants": [{"name": "a", "api_keys": ["k"]}, {"name": "a", "api_keys": ["l"]}]}, "differ"),
        ({"max_in_flight": 0}, "greater"),
    ],
)
def test_wrong_settings_are_named(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(**fields)


def test_two_tenants_cannot_share_a_key() -> None:
    with pytest.raises(ValueError, match="share"):
        KeyRing(settings(tenants=[{"name": "a", "api_keys": ["k"]}, {"name": "b", "api_keys": ["k"]}]))


async def test_every_refusal_says_when_to_come_back() -> None:
    clock = Clock()
    limits = {"requests_per_minute": 2, "tokens_per_minute": 1000, "max_queue": 0, "max_in_flight": 1}
    admission = Admission(settings(tenants=[{"name": "a", "api_keys": ["k"], **limits}]), Metrics(), clock)
    await admission.admit("a")
    async with admission.acquire("a") as permit:
        await permit.charge(900)
        assert permit.headers["x-ratelimit-remaining-tokens"] == "100"
        with pytest.raises(ApiError) as refused:
            await permit.charge(500)
        assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
        assert 24 <= int(refused.value.headers["retry-after"]) <= 25
        with pytest.raises(ApiError) as refused:
            async with admission.acquire("a"):
                pass
        assert refused.value.code == "queue_full"
        assert "retry-after" in refused.value.headers
    await admission.admit("a")
    with pytest.raises(ApiError) as refused:
        await admission.admit("a")
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.headers["x-ratelimit-remaining-requests"] == "0"
    clock.now += 61
    await admission.admit("a")

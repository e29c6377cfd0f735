"""Other keys and limits while requests run and wait: who is in stays in, the new rules hold for the next."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admission.admission import Admission
from gateway.admission.gate import Gate
from gateway.admission.model_places import ModelPlaces
from gateway.admission.settings import AdmissionSettings
from gateway.errors import ApiError
from gateway.metrics import Metrics


def settings(**fields: object) -> AdmissionSettings:
    return AdmissionSettings.model_validate(fields)


def tenant(name: str, key: str, **limits: object) -> dict[str, object]:
    return {"name": name, "api_keys": [key], **limits}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_removed_tenants_request_goes_on_and_its_next_is_refused() -> None:
    admission = Admission(settings(tenants=[tenant("a", "ka", tokens_per_minute=100), tenant("b", "kb")]), Metrics())
    async with admission.acquire("a") as permit:
        admission.apply(settings(tenants=[tenant("b", "kb")]))
        await permit.charge(10)
        permit.settle(5)
        for ask in (admission.admit("a"), admission.acquire("a").__aenter__()):
            with pytest.raises(ApiError) as refused:
                await ask
            assert refused.value.code == "invalid_api_key"
    with pytest.raises(ApiError):
        admission.authenticate(bearer("ka"))
    assert admission.authenticate(bearer("kb")) == "b"


async def test_what_was_used_of_a_minute_stays_used() -> None:
    admission = Admission(settings(tenants=[tenant("a", "k", requests_per_minute=3)]), Metrics(), lambda: 0.0)
    for _ in range(3):
        await admission.admit("a")
    admission.apply(settings(tenants=[tenant("a", "k", requests_per_minute=4)]))
    await admission.admit("a")
    with pytest.raises(ApiError):
        await admission.admit("a")
    admission.apply(settings(tenants=[tenant("a", "k")]))
    await admission.admit("a")
    async with admission.acquire("a") as permit:
        assert permit.headers == {}


async def test_more_places_let_those_in_who_wait() -> None:
    admission = Admission(settings(max_in_flight=1), Metrics())
    async with admission.acquire("default"):
        entering = asyncio.create_task(admission.acquire("default").__aenter__())
        await asyncio.sleep(0)
        assert not entering.done()
        admission.apply(settings(max_in_flight=2))
        await asyncio.wait_for(entering, 1)


def test_settings_that_cannot_be_change_nothing() -> None:
    admission = Admission(settings(tenants=[tenant("a", "k")]), Metrics())
    with pytest.raises(ValueError, match="share"):
        admission.apply(settings(tenants=[tenant("b", "x"), tenant("c", "x")]))
    assert admission.authenticate(bearer("k")) == "a"


async def test_queue_timeout_is_what_was_configured() -> None:
    admission = Admission(settings(max_in_flight=1, queue_timeout_s=0.02), Metrics())
    async with admission.acquire("default"):
        with pytest.raises(ApiError) as refused:
            await admission.acquire("default").__aenter__()
    assert refused.value.code == "overloaded" and "0.02 s" in refused.value.message


async def test_places_of_a_model_survive_its_limit() -> None:
    places = ModelPlaces()
    places.apply({"m": (1, 5)})
    leave = await places.enter("m", "t", 0)
    waiting = asyncio.create_task(places.enter("m", "t", 0))
    await asyncio.sleep(0)
    assert places.full("m") and places.take("m", "t") is None and not waiting.done()
    places.apply({})
    leave_too = await asyncio.wait_for(waiting, 1)
    assert not places.full("m")
    leave()
    leave_too()
    places.apply({"m": (1, 0)})
    again = places.take("m", "t")
    assert again is not None and places.full("m"), "the old limit's requests do not count twice"
    again()


async def test_waiting_for_a_model_holds_no_place_of_the_gateway() -> None:
    admission = Admission(settings(max_in_flight=2), Metrics())
    admission.models.apply({"slow": (1, 5)})
    async with admission.acquire("default", "slow"):
        waiting = asyncio.create_task(admission.acquire("default", "slow").__aenter__())
        await asyncio.sleep(0)
        async with asyncio.timeout(1), admission.acquire("default", "quick"):
            assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(1), admission.acquire("default", "slow"):
        pass


async def test_moving_to_a_full_model_keeps_the_place_there_was() -> None:
    admission = Admission(settings(), Metrics())
    admission.models.apply({"a": (1, 0), "b": (1, 0)})
    async with admission.acquire("default", "a") as first, admission.acquire("default", "b"):
        assert not await first.move("b")
        assert admission.models.full("a")
    async with admission.acquire("default", "a") as first:
        assert await first.move("b")
        assert admission.models.full("b") and not admission.models.full("a")
    assert not admission.models.full("b")


def test_a_gate_lets_nobody_past_those_who_wait() -> None:
    gate = Gate(places=1, max_queue=1)
    assert gate.try_enter("a") and not gate.try_enter("a")
    gate.leave("a")
    assert gate.try_enter("b")

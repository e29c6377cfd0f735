"""Two gateways behind one real Redis have one set of limits; a Redis that is away costs nobody an answer."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.admission.admission import Admission
from gateway.admission.limits import Bucket
from gateway.admission.redis_limits import RedisLimits, problem_of
from gateway.admission.settings import AdmissionSettings
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.processes.client import HubClient
from gateway.processes.hub import Hub
from tests.certificates import self_signed
from tests.fixtures.redis import RedisServer


def settings(url: str, **fields: Any) -> AdmissionSettings:
    limits = {
        k: fields.pop(k) for k in list(fields) if k.endswith("_per_minute") or k in ("max_in_flight", "max_queue")
    }
    return AdmissionSettings.model_validate(
        {"default_limits": limits, "redis_url": url, "redis_timeout_s": 2, **fields}
    )


@asynccontextmanager
async def gateways(count: int, url: str, **fields: Any) -> AsyncIterator[list[Admission]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Admission(settings(url, **fields), Metrics())) for _ in range(count)]


async def admitted(gateway: Admission, times: int) -> int:
    async def one() -> bool:
        try:
            await gateway.admit("default")
        except ApiError as e:
            return not (e.status == 429 and 1 <= int(e.headers["retry-after"]) <= 120)
        return True

    return sum(await asyncio.gather(*(one() for _ in range(times))))


def value(gateway: Admission, name: str) -> float:
    return gateway._metrics.registry.get_sample_value(f"catalejo_admission_{name}") or 0.0


async def test_requests_per_minute_are_of_all_gateways_together(redis: RedisServer) -> None:
    async with gateways(3, redis.url, requests_per_minute=20) as all_of_them:
        assert sum(await asyncio.gather(*(admitted(g, 15) for g in all_of_them))) == 20
        assert value(all_of_them[0], "redis_up") == 1


async def test_tokens_charged_by_one_are_seen_by_the_other_and_corrected(redis: RedisServer) -> None:
    async with gateways(2, redis.url, tokens_per_minute=1000) as (a, b):
        async with a.acquire("default") as permit:
            await permit.charge(600)
            permit.settle(300)
        await settled(a)
        async with b.acquire("default") as permit:
            with pytest.raises(ApiError) as refused:
                await permit.charge(200)
            assert 80 <= int(refused.value.headers["x-ratelimit-remaining-tokens"]) <= 110
            assert refused.value.headers["x-ratelimit-limit-tokens"] == "1000"
            permit.settle(-600)  # given back
            await settled(b)
            await permit.charge(200)


async def settled(gateway: Admission) -> None:
    shared = gateway._leases
    assert isinstance(shared, RedisLimits)
    await asyncio.gather(*shared._tasks)


async def test_the_script_is_the_bucket_of_limits_py(redis: RedisServer) -> None:
    """Same takes, same levels: debts, sizes above the whole bucket, a changed limit. Redis's clock moves by microseconds."""
    bucket = Bucket(100, lambda: 0.0)
    async with gateways(1, redis.url) as [gateway]:
        shared = gateway._leases
        assert isinstance(shared, RedisLimits)
        for step, per, units in [
            ("take", 100, 30), ("take", 100, 80), ("correct", 100, 50), ("take", 100, 1), ("correct", 100, 90),
            ("correct", 100, -500), ("take", 100, 250), ("correct", 40, 0), ("correct", 300, 0), ("take", 300, 300),
        ]:  # fmt: skip
            if bucket.per_minute != per:
                bucket.resize(per)
            if step == "take":
                want = bucket.take(units)
                got = await shared.take("t", "tokens", per, units)
                assert got.level == pytest.approx(want.level, abs=2) and got.wait_s == pytest.approx(want.wait_s, abs=2)
                assert (got.wait_s > 0) == (want.wait_s > 0)
            else:
                bucket.correct(units)
                await shared._correct("t", "tokens", per, units)


async def test_places_of_a_tenant_are_of_all_gateways_and_come_back(redis: RedisServer) -> None:
    async with gateways(2, redis.url, max_in_flight=2) as (a, b), AsyncExitStack() as inside:
        for gateway in (a, b):
            await inside.enter_async_context(gateway.acquire("default"))
        waiting = [asyncio.create_task(hold(g)) for g in (a, b)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        assert value(a, "queue_depth") == 1
        await inside.aclose()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert value(a, "in_flight") == value(b, "in_flight") == value(a, "queue_depth") == 0


async def hold(gateway: Admission, seconds: float = 0.0) -> None:
    async with gateway.acquire("default"):
        await asyncio.sleep(seconds)


async def test_never_more_than_the_limit_inside_whoever_leaves_while_waiting(redis: RedisServer) -> None:
    inside = most = 0

    async def one(gateway: Admission) -> None:
        nonlocal inside, most
        async with gateway.acquire("default"):
            inside += 1
            most = max(most, inside)
            try:
                await asyncio.sleep(0.002)
            finally:
                inside -= 1

    async with gateways(2, redis.url, max_in_flight=3) as pair:
        tasks = [asyncio.create_task(one(pair[i % 2])) for i in range(60)]
        for task in tasks[::3]:
            await asyncio.sleep(0.001)
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [d for d in done if isinstance(d, Exception)]
        assert most <= 3
        await asyncio.gather(*(asyncio.wait_for(hold(g), 10) for g in pair * 3))


async def test_the_queue_for_a_tenants_places_is_bounded(redis: RedisServer) -> None:
    async with gateways(1, redis.url, max_in_flight=1, max_queue=1) as [a]:
        async with a.acquire("default"):
            waiting = asyncio.create_task(hold(a))
            await asyncio.sleep(0.1)
            with pytest.raises(ApiError) as refused:
                await hold(a)
            assert refused.value.code == "queue_full"
        await asyncio.wait_for(waiting, 10)


async def test_a_dead_gateways_places_come_back_and_a_live_ones_are_renewed(redis: RedisServer) -> None:
    dead = RedisLimits(
        settings(redis.url, redis_lease_s=1), Admission(AdmissionSettings(), Metrics())._rates, Metrics()
    )
    async with gateways(2, redis.url, max_in_flight=2, redis_lease_s=1) as (a, b):
        await dead.enter("default", 2, 10, lambda waiting: None)  # and nobody renews it
        async with a.acquire("default"):
            await asyncio.wait_for(hold(b), 10)
            await asyncio.sleep(1.5)  # longer than a lease: a's own is still held
            async with b.acquire("default"):
                third = asyncio.create_task(hold(b))
                await asyncio.sleep(0.3)
                assert not third.done()
            await asyncio.wait_for(third, 10)
    await dead._client.aclose()


async def test_without_redis_each_gateway_has_its_own_limits_and_says_so_once(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "catalejo.admission")
    async with gateways(1, redis.url, requests_per_minute=5, max_in_flight=1) as [a]:
        assert await admitted(a, 2) == 2
        redis.stop()
        assert await admitted(a, 20) == 5  # a fresh bucket of its own
        await asyncio.wait_for(hold(a), 10)
        said = [r.message for r in caplog.records if "does not answer" in r.message]
        assert len(said) == 1 and "own limits hold" in said[0]
        assert value(a, "redis_up") == 0 and value(a, "redis_failures_total") >= 1
        redis.start()
        async with asyncio.timeout(10):
            while not value(a, "redis_up"):
                await admitted(a, 1)
                await asyncio.sleep(0.1)
        assert "answers again" in caplog.text


async def test_a_gateway_that_shall_not_guess_refuses_what_has_a_limit(redis: RedisServer) -> None:
    redis.stop()
    async with gateways(1, redis.url, requests_per_minute=5, redis_fail_open=False) as [a]:
        with pytest.raises(ApiError) as refused:
            await a.admit("default")
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
        assert "retry-after" in refused.value.headers
        await hold(a)  # no limit of places, so nothing to ask
    async with gateways(1, redis.url, max_in_flight=1, redis_fail_open=False) as [a]:
        await a.admit("default")
        with pytest.raises(ApiError):
            await hold(a)
        assert value(a, "in_flight") == 0


async def test_a_redis_that_hangs_is_waited_for_once_not_by_everybody(redis: RedisServer) -> None:
    async with gateways(1, redis.url, requests_per_minute=50, redis_timeout_s=0.2) as [a]:
        assert await admitted(a, 1) == 1
        redis.pause(True)
        try:
            async with asyncio.timeout(10):
                assert await admitted(a, 10) == 10
            before = value(a, "redis_failures_total")
            assert await admitted(a, 30) == 30
            assert value(a, "redis_failures_total") <= before + 1
        finally:
            redis.pause(False)


async def test_what_was_taken_for_a_client_that_left_is_given_back(redis: RedisServer) -> None:
    async with gateways(1, redis.url, tokens_per_minute=100, max_in_flight=1) as [a]:
        shared = a._leases
        assert isinstance(shared, RedisLimits)
        redis.pause(True)
        tasks = [asyncio.create_task(shared.take("t", "tokens", 100, 90)), asyncio.create_task(hold(a))]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        redis.pause(False)
        while shared._tasks:
            await settled(a)
        assert (await shared.take("t", "tokens", 100, 0)).level == 100
        await asyncio.wait_for(hold(a), 10)
        assert value(a, "redis_up") == 1


async def test_leases_taken_without_redis_are_known_to_it_later(redis: RedisServer) -> None:
    redis.stop()
    async with gateways(1, redis.url, max_in_flight=1, redis_lease_s=1) as [a]:
        async with a.acquire("default"):
            redis.start()
            async with asyncio.timeout(10):
                while not value(a, "redis_up"):
                    await asyncio.sleep(0.1)
            await asyncio.sleep(0.5)
            async with gateways(1, redis.url, max_in_flight=1, redis_lease_s=1) as [b]:
                second = asyncio.create_task(hold(b))
                await asyncio.sleep(0.3)
                assert not second.done()
                second.cancel()
                await asyncio.gather(second, return_exceptions=True)


async def test_a_redis_that_answers_with_errors_is_a_redis_that_is_away(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "1mb", "--maxmemory-policy", "noeviction")
    server.start()
    try:
        async with gateways(1, server.url, requests_per_minute=3, max_in_flight=1) as [a]:
            assert await admitted(a, 10) == 3
            await asyncio.wait_for(hold(a), 10)
            assert value(a, "redis_up") == 0 and value(a, "redis_failures_total") >= 1
    finally:
        server.stop()


async def test_a_redis_that_forgot_its_scripts_gets_them_again(redis: RedisServer) -> None:
    async with gateways(1, redis.url, requests_per_minute=5) as [a]:
        assert await admitted(a, 2) == 2
        shared = a._leases
        assert isinstance(shared, RedisLimits)
        await shared._client.script_flush()
        assert await admitted(a, 10) == 3
        assert value(a, "redis_up") == 1


async def test_processes_of_one_command_share_through_redis_and_without_it_through_their_supervisor(
    redis: RedisServer, tmp_path: Path
) -> None:
    hub = Hub(100, 100, lambda number: None)
    await hub.start(tmp_path / "hub.sock")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(hub.close)
        processes = []
        for number in range(2):
            client = HubClient(tmp_path / "hub.sock", number)
            await client.connect()
            stack.callback(client.close)
            made = Admission(settings(redis.url, requests_per_minute=10), Metrics(), rates=client, places=client)
            processes.append(await stack.enter_async_context(made))
        assert sum(await asyncio.gather(*(admitted(p, 15) for p in processes))) == 10
        redis.stop()
        assert sum(await asyncio.gather(*(admitted(p, 15) for p in processes))) == 10


async def test_tls_and_password(tmp_path: Path) -> None:
    key, certificate = tmp_path / "k.pem", tmp_path / "c.pem"
    self_signed(certificate, key, "localhost", "DNS:localhost")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = RedisServer(
        tmp_path, "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no", "--requirepass", "s3cret",
    )  # fmt: skip
    server.start()
    url = f"rediss://localhost:{port}/0"
    try:
        for password, up in (("s3cret", 1), ("wrong", 0)):
            fields = {"redis_password": password, "redis_ca_file": certificate, "requests_per_minute": 5}
            async with gateways(1, url, **fields) as [a]:
                await a.admit("default")
                assert value(a, "redis_up") == up
        good = settings(url, redis_password="s3cret", redis_ca_file=certificate)
        assert await problem_of(good) is None
        assert "AuthenticationError" in str(await problem_of(good.model_copy(update={"redis_password": None})))
        async with gateways(1, url, redis_password="s3cret", requests_per_minute=5) as [a]:
            assert value(a, "redis_up") == 0, "an unknown authority must not be believed"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"redis_url": "http://x"}, "redis://"),
        ({"redis_url": "redis://x", "redis_ca_file": "/c.pem"}, "rediss://"),
        ({"redis_url": "redis://x", "redis_timeout_s": 0}, "greater than 0"),
        ({"redis_url": "redis://x", "redis_prefix": "a b"}, "redis_prefix"),
    ],
)
def test_wrong_settings_are_named(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AdmissionSettings.model_validate(fields)


async def test_permits_of_a_gateway_without_limits_have_no_headers() -> None:
    async with Admission(AdmissionSettings(), Metrics()).acquire("default") as permit:
        assert permit.headers == {}

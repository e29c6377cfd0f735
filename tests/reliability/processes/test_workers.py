"""`catalejo gateway --workers 3` as real processes: one set of limits, one /metrics, one file store, one prefix index; a process
that is killed costs its own requests and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from gateway.observability.ledger.report import read, totals
from tests.api.harness import MODEL, TINY, body_of, read_events
from tests.fixtures.media.png import png
from tests.mock_engine import MockEngine
from tests.reliability.processes.command import Command

pytestmark = pytest.mark.asyncio(loop_scope="module")
PLACES = 36
LEDGER = "usage.sqlite"
KEYS = {name: {"authorization": f"Bearer key-of-{name}"} for name in ("free", "minute", "places", "accounted")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Command]:
    limits = {"free": {}, "accounted": {}, "minute": {"requests_per_minute": 20}, "places": {"max_in_flight": PLACES}}
    tenants = [{"name": n, "api_keys": [f"key-of-{n}"], **limits[n]} for n in limits]
    routing = {"block_tokens": 16, "health_interval_s": 60, "recent_weight": 3}
    folder = tmp_path_factory.mktemp("workers")
    observability = {"log_format": "text", "ledger": {"path": str(folder / LEDGER)}}
    settings = {"admission": {"tenants": tenants}, "observability": observability}
    async with Command(folder, 3, engines=2, routing=routing, shutdown_grace_s=20, **settings) as made:
        yield made


async def test_requests_per_minute_are_the_limit_not_three_times_it(gateway: Command) -> None:
    assert len(await gateway.process_ids()) == 3
    answers = await asyncio.gather(*(gateway.chat(headers=KEYS["minute"]) for _ in range(60)))
    assert Counter(a.status for a in answers) == {200: 20, 429: 40}
    for refused in (a for a in answers if a.status == 429):
        assert refused.error["code"] == "rate_limit_exceeded" and 1 <= int(refused.headers["retry-after"]) <= 120


async def test_one_scrape_counts_what_all_processes_did(gateway: Command) -> None:
    name = 'catalejo_http_requests_total{route="/v1/models",status="200"}'
    before = await gateway.metric(name)
    await asyncio.gather(*(gateway.call("GET", "/v1/models", headers=KEYS["free"]) for _ in range(50)))
    for _ in range(5):  # whichever process answers
        assert await gateway.metric(name) == before + 50
    text = (await gateway.operations("/metrics")).raw.decode()
    assert "catalejo_build_info{" in text and "pid=" not in text
    for engine in ("engine-0", "engine-1"):
        assert f'catalejo_worker_up{{worker="{engine}"}} 1.0' in text
    assert (await gateway.call("GET", "/metrics")).status == 401  # a key is asked for first
    assert (await gateway.call("GET", "/metrics", headers=KEYS["free"])).status == 403


async def test_one_ledger_holds_what_all_processes_did(
    gateway: Command,
) -> None:
    answers = await asyncio.gather(*(gateway.chat(headers=KEYS["accounted"]) for _ in range(60)))
    output = sum(a.json["usage"]["completion_tokens"] for a in answers)
    async with asyncio.timeout(30):
        while True:
            total = totals(read(gateway.config.parent / LEDGER, 0, 1e12), ("tenant",), {})[0].get(("accounted",))
            if total is not None and total.sums["requests"] == 60:
                break
            await asyncio.sleep(0.05)
    assert total.outcomes["ok"] == 60
    assert total.sums["output_tokens"] == output
    assert await gateway.metric('catalejo_ledger_records_total{outcome="written"}') >= 60


async def test_a_file_uploaded_to_one_process_is_known_to_all(gateway: Command) -> None:
    form = aiohttp.FormData({"purpose": "vision"})
    form.add_field("file", png(32, 32), filename="a.png")
    uploaded = await gateway.call("POST", "/v1/files", data=form, headers=KEYS["free"])
    assert uploaded.status == 200, uploaded.raw
    path = f"/v1/files/{uploaded.json['id']}"
    found = await asyncio.gather(*(gateway.call("GET", path, headers=KEYS["free"]) for _ in range(20)))
    assert {a.status for a in found} == {200}
    assert (await gateway.call("DELETE", path, headers=KEYS["free"])).status == 200
    gone = await asyncio.gather(*(gateway.call("GET", path, headers=KEYS["free"]) for _ in range(20)))
    assert {a.status for a in gone} == {404}


async def test_a_conversation_finds_its_engine_whichever_process_it_reaches(gateway: Command) -> None:
    for engine in gateway.engines:
        engine.clear_log()
    talks = [" ".join(f"{word}{i}" for i in range(200)) for word in ("ant", "bee", "cow", "dog")]
    for _ in range(6):
        for talk in talks:
            assert (await gateway.chat(talk, headers=KEYS["free"])).status == 200
    seen: dict[tuple[int, ...], set[int]] = {}
    for number, engine in enumerate(gateway.engines):
        for request in engine.requests():
            seen.setdefault(tuple(request["ids"]), set()).add(number)
    assert len(seen) == len(talks)
    assert all(len(engines) == 1 for engines in seen.values())
    assert set.union(*seen.values()) == {0, 1}, "both engines are used"


async def read_all(gateway: Command) -> bool:
    """One stream of the tenant `places`, to its end: whether it came whole."""
    url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
    try:
        async with gateway.session.post(
            url, json=body_of("Hello", {"stream": True}), headers=KEYS["places"]
        ) as response:
            events = await read_events(response)
            return events.done and len(events.finishes()) > 0
    except aiohttp.ClientError:
        return False


async def running(gateway: Command, count: int) -> None:
    async def true() -> bool:
        return sum(e.running for e in gateway.engines) == count

    await gateway.until(true)


async def replaced(gateway: Command, victim: int) -> None:
    async def true() -> bool:
        try:
            now = await gateway.process_ids()
        except aiohttp.ClientError:
            return False
        return len(now) == 3 and victim not in now

    await gateway.until(true)


async def test_an_administrators_drain_holds_for_all_processes_and_counts_all_of_them(gateway: Command) -> None:
    for engine in gateway.engines:
        engine.script([{"pieces": [[5]] * 100, "delay_ms": 50}])
    streams = [asyncio.create_task(read_all(gateway)) for _ in range(12)]
    await running(gateway, 12)
    drained = await gateway.operations("/admin/engines/engine-0/drain", "POST")
    assert (drained.status, drained.json["state"]) == (200, "draining")
    assert drained.json["in_flight"] == gateway.engines[0].running
    for _ in range(12):  # whichever process answers
        listed = (await gateway.operations("/admin/engines")).json["engines"]
        assert sum(e["in_flight"] for e in listed) == 12
    assert await states(gateway, "draining")
    assert all(await asyncio.gather(*streams)), "what runs there goes on"
    assert (await gateway.operations("/admin/engines/engine-0/drain", "DELETE")).json["state"] == "up"
    assert await states(gateway, "up")
    assert (await gateway.call("GET", "/admin/engines", headers=KEYS["free"])).status == 403


async def states(gateway: Command, wanted: str) -> bool:
    """Whether engine-0 is `wanted` in every process, or soon will be."""

    async def true() -> bool:
        return {(await gateway.operations("/admin/engines")).json["engines"][0]["state"] for _ in range(20)} == {wanted}

    await gateway.until(true)
    return True


async def test_a_killed_process_costs_its_own_requests_and_its_successor_knows_what_the_others_know(
    gateway: Command,
) -> None:
    # What all have been told: another tenant by reload, a drain. What nobody took: a broken file.
    new = {"authorization": "Bearer key-of-new"}

    async def reloaded() -> bool:
        return {(await gateway.call("GET", "/v1/models", headers=new)).status for _ in range(20)} == {200}

    gateway.write(
        admission={"tenants": [*gateway.settings["admission"]["tenants"], {"name": "new", "api_keys": ["key-of-new"]}]}
    )
    gateway.process.send_signal(signal.SIGHUP)
    await gateway.until(reloaded)
    gateway.config.write_text("{")
    gateway.process.send_signal(signal.SIGHUP)
    await gateway.operations("/admin/engines/engine-0/drain", "POST")
    assert await states(gateway, "draining")

    for engine in gateway.engines:
        engine.clear_log()
        engine.script([{"pieces": [[5]] * 60, "delay_ms": 50}])
    victim = min(await gateway.process_ids())
    streams = [asyncio.create_task(read_all(gateway)) for _ in range(PLACES)]
    await running(gateway, PLACES)
    assert await gateway.metric("catalejo_admission_in_flight") == PLACES
    counted = await gateway.metric("catalejo_http_requests_total")
    os.kill(victim, signal.SIGKILL)
    whole = sum(await asyncio.gather(*streams))
    assert 0 < whole < PLACES, "two processes of three went on"
    await running(gateway, 0)
    await replaced(gateway, victim)
    assert "ended by signal 9; starting it again" in gateway.log
    assert await gateway.metric("catalejo_admission_in_flight") == 0
    assert await gateway.metric("catalejo_http_requests_total") >= counted + whole, "what the dead had counted is kept"

    again = [asyncio.create_task(read_all(gateway)) for _ in range(PLACES)]
    await running(gateway, PLACES)  # every place, those of the dead too
    assert all(await asyncio.gather(*again))
    assert not gateway.engines[0].requests() and await states(gateway, "draining")
    assert await reloaded() and "is not reloaded" in gateway.log
    assert (await gateway.operations("/admin/engines/engine-0/drain", "DELETE")).status == 200


async def test_a_stop_lets_streams_finish_and_ends_with_success(gateway: Command) -> None:
    for engine in gateway.engines:
        engine.script([{"pieces": [[5]] * 40, "delay_ms": 25}])
    url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
    opened = [
        await gateway.session.post(url, json=body_of("Hello", {"stream": True}), headers=KEYS["free"]) for _ in range(6)
    ]
    gateway.process.send_signal(signal.SIGTERM)
    events = await asyncio.gather(*(read_events(r) for r in opened))
    assert all(e.done and len(e.finishes()) for e in events)
    async with asyncio.timeout(60):
        assert await gateway.process.wait() == 0
    with pytest.raises(aiohttp.ClientConnectionError):
        await gateway.chat(headers=KEYS["free"])


async def test_a_models_places_are_the_limit_with_more_processes_than_places(tmp_path: Path) -> None:
    """Symptom: each process had at least one of them."""
    async with MockEngine(TINY, [{"pieces": [[5]] * 20, "delay_ms": 20}]) as engine:
        model = {"name": MODEL, "model_path": str(TINY), "engines": [{"url": engine.url}], "max_in_flight": 2}
        async with Command(tmp_path, 3, engines=0, model_path=None, models=[model]) as command:

            async def serves() -> bool:
                return (await command.operations("/ready")).status == 200

            await command.until(serves)
            asked = [asyncio.create_task(command.complete(max_tokens=20)) for _ in range(12)]
            most = 0
            while not all(a.done() for a in asked):
                most = max(most, engine.running)
                await asyncio.sleep(0.005)
            assert {a.result().status for a in asked} == {200}
            assert most == 2

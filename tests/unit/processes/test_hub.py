"""The hub and its processes' side, over a real Unix socket: common places, queue and buckets; nothing stays with the dead."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.admission.admission import Admission
from gateway.admission.gate import GateFull
from gateway.admission.model_places import ModelPlaces
from gateway.admission.settings import AdmissionSettings
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.processes.client import HubClient
from gateway.processes.frames import Frames, pack
from gateway.processes.hub import Hub
from gateway.processes.places import WHOLE
from gateway.processes.routing import share_load, share_routing
from gateway.routing.elsewhere import Elsewhere, Load
from gateway.routing.policies import RouteRequest


@asynccontextmanager
async def hub(tmp_path: Path, places: int = 4, max_queue: int = 10) -> AsyncIterator[tuple[Hub, Path]]:
    made = Hub(places, max_queue, lambda number: None)
    path = tmp_path / "hub.sock"
    await made.start(path)
    try:
        yield made, path
    finally:
        await made.close()


@asynccontextmanager
async def processes(path: Path, count: int = 2) -> AsyncIterator[list[HubClient]]:
    async with AsyncExitStack() as stack:
        clients = [HubClient(path, n) for n in range(count)]
        for client in clients:
            await client.connect()
            stack.callback(client.close)
        yield clients
    await asyncio.sleep(0)


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


async def test_places_are_of_all_processes_and_pass_from_one_to_the_other(tmp_path: Path) -> None:
    async with hub(tmp_path, places=2) as (h, path), processes(path) as (a, b):
        leave_a, leave_b = await a.places.enter("t"), await b.places.enter("t")
        third = asyncio.create_task(b.places.enter("t"))
        await until(lambda: h.gates[WHOLE].waiting)
        assert (a.places.in_flight, b.places.in_flight, b.places.waiting) == (1, 1, 1)
        leave_a()
        (await asyncio.wait_for(third, 10))()
        leave_b()
        await until(lambda: not h.gates[WHOLE].in_flight)
        assert (a.places.in_flight, b.places.in_flight, b.places.waiting) == (0, 0, 0)


async def test_the_queue_is_one_and_its_bounds_are_told(tmp_path: Path) -> None:
    async with hub(tmp_path, places=1, max_queue=1) as (h, path), processes(path) as (a, b):
        leave = await a.places.enter("t")
        waiting = asyncio.create_task(a.places.enter("t"))
        await until(lambda: h.gates[WHOLE].waiting)
        with pytest.raises(GateFull) as full:
            await b.places.enter("t")
        assert (full.value.whose, full.value.waiting) == ("all", 1)
        b.places.resize(3, 1)
        (await asyncio.wait_for(waiting, 10))()
        leave()


async def test_a_cancelled_entry_leaves_nothing_at_whatever_moment(tmp_path: Path) -> None:
    async with hub(tmp_path, places=1, max_queue=1000) as (h, path), processes(path) as clients:
        for turns in range(8):
            tasks = [asyncio.create_task(clients[i % 2].places.enter("t")) for i in range(6)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            for leave in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(leave, BaseException):
                    leave()
            await until(lambda: not h.gates[WHOLE].in_flight and not h.gates[WHOLE].waiting)
        assert [c.places.in_flight + c.places.waiting for c in clients] == [0, 0]
        assert not [m for m in h.members if m._inside or m._entering]


async def test_a_process_that_dies_gives_back_its_places_and_its_waiting(tmp_path: Path) -> None:
    async with hub(tmp_path, places=2) as (h, path), processes(path) as (a, b):
        await a.places.enter("t")
        await a.places.enter("t")
        theirs = asyncio.create_task(a.places.enter("t"))
        mine = asyncio.create_task(b.places.enter("t"))
        await until(lambda: h.gates[WHOLE].waiting == 2)
        a.close()
        (await asyncio.wait_for(mine, 10))()
        await until(lambda: not h.gates[WHOLE].in_flight and not h.gates[WHOLE].waiting)
        with pytest.raises(ApiError) as refused:
            await theirs
        assert refused.value.code == "shutting_down"


async def test_limits_per_minute_count_over_all_processes(tmp_path: Path) -> None:
    settings = AdmissionSettings.model_validate(
        {"default_limits": {"requests_per_minute": 10, "tokens_per_minute": 100}}
    )
    async with hub(tmp_path) as (_, path), processes(path, 3) as clients:
        made = [Admission(settings, Metrics(), rates=c, places=c.places) for c in clients]
        done = await asyncio.gather(*(a.admit("default") for a in made * 6), return_exceptions=True)
        assert sum(d is None for d in done) == 10
        async with made[0].acquire("default") as permit:
            await permit.charge(60)
            permit.settle(40)
        async with made[1].acquire("default") as permit:
            with pytest.raises(ApiError) as refused:
                await permit.charge(50)
            assert refused.value.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_what_was_taken_for_a_client_that_left_is_given_back(tmp_path: Path) -> None:
    async with hub(tmp_path) as (_, path), processes(path, 1) as [a]:
        for turns in range(3):
            task = asyncio.create_task(a.take("t", "tokens", 100, 90))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (await a.take("t", "tokens", 100, 0)).level >= 0
        await a.take("t", "tokens", 100, 0)
        assert (await a.take("t", "tokens", 100, 0)).level == 100
        assert not a._asked


async def test_without_its_supervisor_a_process_refuses_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    async with hub(tmp_path) as (h, path), processes(path, 1) as [a]:
        await a.places.enter("t")
        await h.close()
        await until(lambda: raised)
        assert raised == [signal.SIGTERM]
        for refused in (a.places.enter("t"), a.take("t", "requests", 1, 1)):
            with pytest.raises(ApiError) as error:
                await refused
            assert (error.value.status, error.value.code) == (503, "shutting_down")


class OtherRouter:
    """As much of a Router as sharing needs."""

    def __init__(self) -> None:
        self.on_sent: Any = None
        self.seen: list[tuple[str, RouteRequest]] = []
        self.elsewhere = Elsewhere()
        self.now: dict[str, Load] = {}

    def loads(self) -> dict[str, Load]:
        return self.now

    def heard(self, engine: str, request: RouteRequest) -> None:
        self.seen.append((engine, request))


async def test_routing_decisions_reach_every_other_process_whole(tmp_path: Path) -> None:
    async with hub(tmp_path) as (_, path), processes(path, 3) as clients:
        routers = [OtherRouter() for _ in clients]
        for client, router in zip(clients, routers, strict=True):
            share_routing(client, [OtherRouter(), router])  # type: ignore[list-item]
        await asyncio.gather(*(c.take("t", "requests", 9, 0) for c in clients))  # all are known to the hub
        names = [i.to_bytes(8, "big") for i in range(4096)]
        routers[0].on_sent("engine-1", RouteRequest(1 << 20, names, 256, "session"))
        await until(lambda: all(r.seen for r in routers[1:]))
        for router in routers[1:]:
            [(engine, request)] = router.seen
            assert (engine, request.prompt_tokens, request.block_tokens) == ("engine-1", 1 << 20, 256)
            assert list(request.names) == names
        assert not routers[0].seen


async def test_what_a_process_has_in_flight_is_seen_by_the_others_until_it_dies(tmp_path: Path) -> None:
    async with hub(tmp_path) as (_, path), processes(path) as (a, b), AsyncExitStack() as sharing:
        mine, theirs = OtherRouter(), OtherRouter()
        mine.now = {"engine-0": (5, 600, 7000)}
        for client, router in ((a, mine), (b, theirs)):
            await sharing.enter_async_context(share_load(client, [router]))  # type: ignore[list-item]
            client.serving()

        def seen() -> list[tuple[str, int, int, int]]:
            own = [Worker("engine-0", 1, 10, 100), Worker("engine-1", 3, 30, 300)]
            return [(c.name, c.in_flight, c.pending_tokens, c.resident_tokens) for c in theirs.elsewhere.with_ours(own)]

        await until(lambda: seen()[0] == ("engine-0", 6, 610, 7100))
        assert seen()[1] == ("engine-1", 3, 30, 300)
        mine.now = {"engine-1": (1, 0, 50)}
        await until(lambda: [c[1] for c in seen()] == [1, 4])
        a.close()
        await until(lambda: [c[1] for c in seen()] == [1, 3])
        assert not theirs.elsewhere


@dataclass
class Worker:
    name: str
    in_flight: int
    pending_tokens: int
    resident_tokens: int
    reported_load: float | None = None


def models(client: HubClient, limits: dict[str, tuple[int, int]]) -> ModelPlaces:
    made = ModelPlaces(client.places_of)
    made.apply(limits)
    return made


async def test_a_models_places_are_of_all_processes(tmp_path: Path) -> None:
    """Symptom: each process had a part of them, and requests waited in one while another had places left."""
    async with hub(tmp_path) as (h, path), processes(path, 3) as clients:
        places = [models(c, {"m": (7, 2), "n": (1, 0)}) for c in clients]
        held = [await places[0].enter("m", "t", 0) for _ in range(7)]
        assert places[0].take("m", "t") is None and await places[1].take_now("m", "t") is None
        await until(lambda: all(p.full("m") for p in places))
        assert not any(p.full("n") for p in places) and not h.gates[WHOLE].in_flight
        waiting = [asyncio.create_task(p.enter("m", "t", 0)) for p in places[1:]]
        await until(lambda: h.gates["m"].waiting == 2)
        with pytest.raises(GateFull):
            await places[0].enter("m", "t", 0)
        held.pop()()
        held.pop()()
        held += [await asyncio.wait_for(w, 10) for w in waiting]
        held.append(await asyncio.wait_for(places[2].enter("n", "t", 0), 10))
        for leave in held:
            leave()
        await until(lambda: not any(g.in_flight for g in h.gates.values()))
        await until(lambda: not any(p.full(m) for p in places for m in "mn"))
        moved = await places[1].take_now("n", "t")
        assert moved is not None and await places[2].take_now("n", "t") is None
        moved()


async def test_a_models_limit_changes_for_all_and_goes_with_the_dead(tmp_path: Path) -> None:
    async with hub(tmp_path) as (h, path), processes(path) as (a, b):
        mine, theirs = models(a, {"m": (1, 5)}), models(b, {"m": (1, 5)})
        await mine.enter("m", "t", 0)
        second = asyncio.create_task(theirs.enter("m", "t", 0))
        await until(lambda: h.gates["m"].waiting)
        for places in (mine, theirs):
            places.apply({"m": (2, 5)})
        await asyncio.wait_for(second, 10)
        third, fourth = (asyncio.create_task(theirs.enter("m", "t", 0)) for _ in range(2))
        await until(lambda: h.gates["m"].waiting == 2 and theirs.full("m"))
        a.close()
        await asyncio.wait_for(third, 10)
        theirs.apply({})
        await asyncio.wait_for(fourth, 10)
        assert theirs.take("m", "t") is not None and not theirs.full("m")


async def test_a_process_that_starts_later_knows_which_models_are_full(tmp_path: Path) -> None:
    async with hub(tmp_path) as (_, path), processes(path, 1) as [a]:
        leave = await models(a, {"m": (1, 0)}).enter("m", "t", 0)
        async with processes(path, 1) as [late]:
            places = models(late, {"m": (1, 0)})
            late.serving()
            await until(lambda: places.full("m"))
            leave()
            await until(lambda: not places.full("m"))


def test_frames_are_read_however_they_are_cut() -> None:
    messages = [["a", 1], ["b", b"x" * 300], ["c", None, [1.5, "z"]]]
    data = b"".join(pack(m) for m in messages)
    for size in (1, 2, 3, 5, 7, 64, len(data)):
        heard: list[Any] = []
        frames = Frames(heard.append, lambda: None)
        for i in range(0, len(data), size):
            frames.data_received(data[i : i + size])
        assert heard == messages

"""Engines that are added, removed, replaced and drained while requests run: nobody notices, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.routing.router import Router
from gateway.routing.settings import EngineEndpoint
from tests.api.harness import TINY, Stack, read_events
from tests.mock_engine import MockEngine

SLOW = [{"pieces": ["one ", "two ", "three ", "four"], "delay_ms": 150, "finish": "stop"}]
QUICK = [{"pieces": ["quick"], "finish": "stop"}]
ROUTING = {"policy": "round_robin", "health_interval_s": 0.05}


def endpoint(engine: MockEngine, name: str | None = None) -> EngineEndpoint:
    return EngineEndpoint(url=engine.url, name=name)


def router_of(stack: Stack) -> Router:
    return stack.app.state.services.routers[0]


async def until(test: object, timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not test():  # type: ignore[operator]
            await asyncio.sleep(0.01)


@asynccontextmanager
async def slow_and_quick() -> AsyncIterator[tuple[Stack, MockEngine, MockEngine]]:
    """A gateway that knows the slow engine, `a`, only."""
    async with MockEngine(TINY, SLOW) as slow, MockEngine(TINY, QUICK) as quick:
        async with Stack(engines=[{"url": slow.url, "name": "a"}], routing=ROUTING) as stack:
            yield stack, slow, quick


async def labels_of(stack: Stack, name: str) -> list[str]:
    text = (await stack.get("/metrics")).raw.decode()
    return [line for line in text.splitlines() if f'worker="{name}"' in line]


async def test_a_removed_engine_finishes_its_streams_and_then_leaves_nothing() -> None:
    async with slow_and_quick() as (stack, slow, quick):
        router = router_of(stack)
        async with stack.open_stream("Hi") as response:
            router.set_engines([endpoint(quick, "b")])
            await until(lambda: router.ready)
            assert (await stack.chat("Hi")).message["content"] == "quick"
            assert [w.name for w in router.leaving] == ["a"]
            events = await read_events(response)
        assert events.done and events.text() == "one two three four"
        await until(lambda: not router.leaving)
        assert await labels_of(stack, "a") == []
        assert await labels_of(stack, "b")
        assert len(slow.requests()) == 1


async def test_an_engine_that_returns_while_it_finishes_is_the_same_worker() -> None:
    async with slow_and_quick() as (stack, slow, quick):
        router = router_of(stack)
        [before] = router.workers
        async with stack.open_stream("Hi") as response:
            router.set_engines([endpoint(quick, "b")])
            router.set_engines([endpoint(quick, "b"), endpoint(slow, "a")])
            assert router.workers[1] is before and not router.leaving
            assert (await read_events(response)).text() == "one two three four"
        await until(lambda: before.healthy)


async def test_a_new_address_under_an_old_name_does_not_disturb_the_old_streams_or_the_new_figures() -> None:
    async with slow_and_quick() as (stack, _slow, quick):
        router = router_of(stack)
        async with stack.open_stream("Hi") as response:
            router.set_engines([endpoint(quick, "a")])
            await until(lambda: router.ready)
            assert (await stack.chat("Hi")).message["content"] == "quick"
            assert await stack.metric('catalejo_in_flight_requests{worker="a"}') == 0
            assert (await read_events(response)).text() == "one two three four"
        await until(lambda: not router.leaving)
        assert await stack.metric('catalejo_worker_up{worker="a"}') == 1
        assert await stack.metric('catalejo_in_flight_requests{worker="a"}') == 0


async def test_unnamed_engines_keep_their_names_whatever_comes_before_them() -> None:
    async with MockEngine(TINY, QUICK) as one, MockEngine(TINY, QUICK) as two:
        async with Stack(engines=[{"url": one.url}, {"url": two.url}], routing=ROUTING) as stack:
            router = router_of(stack)
            first, second = router.workers
            router.set_engines([EngineEndpoint(url="http://127.0.0.1:9"), endpoint(two), endpoint(one)])
            assert [w.name for w in router.workers] == ["engine-2", "engine-1", "engine-0"]
            assert router.workers[1] is second and router.workers[2] is first
            router.set_engines([endpoint(two), endpoint(one, "engine-0")])
            assert [w.name for w in router.workers] == ["engine-1", "engine-0"]
            assert router.workers[1] is not first, "another endpoint, if of the same name"


async def test_two_of_one_name_are_refused_and_change_nothing() -> None:
    async with slow_and_quick() as (stack, slow, quick):
        router = router_of(stack)
        before = list(router.workers)
        with pytest.raises(ValueError, match="names must differ"):
            router.set_engines([endpoint(slow, "x"), endpoint(quick, "x")])
        assert router.workers == before


async def test_no_engines_at_all_is_a_503_and_not_ready() -> None:
    async with slow_and_quick() as (stack, _slow, quick):
        router_of(stack).set_engines([])
        assert (await stack.get("/ready")).status == 503
        refused = await stack.chat("Hi")
        assert (refused.status, refused.error["code"]) == (503, "engine_unavailable")
        router_of(stack).set_engines([endpoint(quick)])
        await until(lambda: router_of(stack).ready)
        assert (await stack.chat("Hi")).message["content"] == "quick"


async def test_an_engine_that_is_not_up_yet_is_said_to_refuse_connections_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Symptom: the first lines of `make serve` named a class of Python, "ClientConnectorError"."""
    caplog.set_level("WARNING", "catalejo.routing")
    async with slow_and_quick() as (stack, slow, quick):
        await quick.stop()
        router_of(stack).set_engines([endpoint(slow, "a"), EngineEndpoint(url=quick.url, name="b")])
        worker = next(w for w in router_of(stack).workers if w.name == "b")
        await until(lambda: worker.asked)
        await stack.chat("Hi")
        told = [r.getMessage() for r in caplog.records if "engine b" in r.getMessage()]
        assert told == ["engine b is not usable: it refuses connections"]


async def test_engines_that_come_and_go_leave_a_bounded_number_of_series() -> None:
    async with MockEngine(TINY, QUICK) as engine:
        async with Stack(engines=[{"url": engine.url, "name": "pod-0"}], routing=ROUTING) as stack:
            router = router_of(stack)
            for i in range(1, 12):
                assert (await stack.chat("Hi")).status == 200
                router.set_engines([endpoint(engine, f"pod-{i}")])
                await until(lambda: router.ready and not router.leaving)
            text = (await stack.get("/metrics")).raw.decode()
            assert {w.split('"')[1] for w in text.split("worker=")[1:]} == {"pod-11"}


async def test_draining_sends_new_requests_elsewhere_and_is_undone() -> None:
    async with slow_and_quick() as (stack, slow, quick):
        router = router_of(stack)
        router.set_engines([endpoint(slow, "a"), endpoint(quick, "b")])
        await until(lambda: all(w.healthy for w in router.workers))
        assert router.drain("a", True) and not router.drain("nobody", True)
        for _ in range(4):
            assert (await stack.chat("Hi")).message["content"] == "quick"
        router.set_engines([endpoint(quick, "b"), endpoint(slow, "a")])
        assert router.workers[1].draining, "a list that changed does not end a drain"
        assert router.drain("b", True)
        assert (await stack.chat("Hi")).error["code"] == "engine_unavailable"
        assert router.drain("a", False) and router.drain("b", False)
        assert {(await stack.chat("Hi")).message["content"] for _ in range(2)} == {"quick", "one two three four"}

"""The sick engine among healthy ones: it answers health checks and every other request, and is left alone for a while."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from tests.api.harness import TINY, Stack
from tests.mock_engine import MockEngine

GOOD = {"pieces": ["well"], "finish": "stop"}


async def test_an_engine_far_from_its_peers_is_ejected_and_comes_back() -> None:
    async with AsyncExitStack() as running:
        flaky: list[dict[str, Any]] = [GOOD, {"pieces": ["Half ", "more"], "fail_after": 1, "fault": "error"}] * 100
        scripts = [flaky, [GOOD], [GOOD]]
        engines = [await running.enter_async_context(MockEngine(TINY, script)) for script in scripts]
        routing = {
            "policy": "round_robin",
            "health_interval_s": 0.05,
            "breaker_failures": 1000,
            "outliers": {"min_requests": 6, "ejection_s": 1.0},
        }
        named = [{"url": e.url, "name": n} for e, n in zip(engines, "abc", strict=True)]
        stack = await running.enter_async_context(Stack(engines=named, routing=routing))
        async with asyncio.timeout(30):
            while not await stack.metric('catalejo_worker_ejections_total{reason="errors",worker="a"}'):
                await stack.stream("Hi")
        served = len(engines[0].requests())
        for _ in range(6):
            assert (await stack.stream("Hi")).text() == "well"
        assert len(engines[0].requests()) == served, "nobody is sent there"
        async with asyncio.timeout(30):
            while len(engines[0].requests()) == served:
                await stack.stream("Hi")
                await asyncio.sleep(0.02)


async def test_an_engine_whose_breaker_was_open_is_tried_by_one_request_at_a_time() -> None:
    """All that waited used to go there the moment the breaker's time was over."""
    bad = [{"status": 500}] * 2
    hang = [{"pieces": ["x"], "fail_after": 0, "fault": "hang"}]
    async with MockEngine(TINY, [*bad, *hang]) as sick, MockEngine(TINY, [GOOD]) as well:
        routing = {"policy": "round_robin", "health_interval_s": 60, "breaker_failures": 2, "breaker_open_s": 0.2}
        engines = [{"url": sick.url, "name": "a"}, {"url": well.url, "name": "b"}]
        upstream = {"idle_timeout_s": 1.0}
        async with Stack(engines=engines, routing=routing, upstream=upstream) as stack:
            for _ in range(4):
                assert (await stack.chat("Hi")).status == 200
            assert len(sick.requests()) == 2
            await asyncio.sleep(0.3)
            answers = await asyncio.gather(*(stack.chat("Hi") for _ in range(8)))
            assert {a.status for a in answers} == {200}
            assert len(sick.requests()) == 3, "one probe; the others did not wait for it"
            [state] = [w for w in stack.app.state.services.routers[0].workers if w.name == "a"]
            assert state.probes == 0 and state.breaker in ("open", "half_open")

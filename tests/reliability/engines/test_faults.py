"""Chaos: two engines, one of them sick. A fault costs at most the requests it touches, and everything comes back.

Before the first token a request moves to the healthy engine and its client notices nothing; after it, the stream ends with an
`error` event and no finish. Slots, places, tasks and file descriptors return to where they were."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.api.harness import TINY, Stack
from tests.mock_engine import MockEngine

GOOD = [{"pieces": ["All is ", "well."], "finish": "stop"}]


@asynccontextmanager
async def pair(sick: list[dict[str, Any]], **settings: Any) -> AsyncIterator[tuple[Stack, MockEngine]]:
    """(gateway with engines a: sick, b: healthy; the healthy one). Round robin: requests 1, 3, ... begin at a."""
    async with MockEngine(TINY, GOOD) as healthy, MockEngine(TINY, sick) as ill:
        engines = [{"url": ill.url, "name": "a"}, {"url": healthy.url, "name": "b"}]
        routing = {
            "policy": "round_robin",
            "health_interval_s": 60,
            "breaker_failures": 1000,
            **settings.pop("routing", {}),
        }
        async with Stack(engines=engines, routing=routing, **settings) as stack:
            yield stack, healthy


async def at_rest(stack: Stack, timeout: float = 5.0) -> None:
    async with asyncio.timeout(timeout):
        while await stack.metric("catalejo_in_flight_requests{") or await stack.metric("catalejo_admission_in_flight"):
            await asyncio.sleep(0.01)


EARLY: dict[str, dict[str, Any]] = {
    "refuses-with-500": {"status": 500},
    "refuses-with-503": {"status": 503},
    "resets-before-headers": {"fail_after": -1, "fault": "reset"},
    "closes-before-headers": {"fail_after": -1, "fault": "eof"},
    "garbage-before-headers": {"fail_after": -1, "fault": "garbage"},
    "resets-before-first-token": {"pieces": ["x"], "fail_after": 0, "fault": "reset"},
    "ends-before-first-token": {"pieces": ["x"], "fail_after": 0, "fault": "eof"},
    "garbage-before-first-token": {"pieces": ["x"], "fail_after": 0, "fault": "garbage"},
    "half-closes-before-first-token": {"pieces": ["x"], "fail_after": 0, "fault": "half_close"},
    "fails-before-first-token": {"pieces": ["x"], "fail_after": 0, "fault": "error", "retryable": True},
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", EARLY.values(), ids=EARLY.keys())
async def test_a_fault_before_the_first_token_is_not_the_clients(fault: dict[str, Any], streamed: bool) -> None:
    async with pair([fault]) as (stack, healthy):
        for _ in range(4):
            if streamed:
                events = await stack.stream("Hi")
                assert events.done and events.text() == "All is well."
                assert events.finishes()[-1] == "stop"
            else:
                answer = await stack.chat("Hi")
                assert answer.message["content"] == "All is well."
        assert len(healthy.requests()) == 4
        await at_rest(stack)


@pytest.mark.parametrize("split_bytes", [None, 1], ids=["same-read", "later"])
@pytest.mark.parametrize(
    "trailing", ["garbage\n", '{"index": 0, "output_ids": [5]}\n', '{"done": true}\n{"done": true}\n']
)
async def test_what_comes_after_the_last_line_is_of_no_answer(trailing: str, split_bytes: int | None) -> None:
    """Symptom: in the same read as `done` it made a failure of a whole answer; a read later nobody looked."""
    talkative = {**GOOD[0], "trailing": trailing, "split_bytes": split_bytes}
    async with Stack([talkative], routing={"breaker_failures": 1}) as stack:
        for _ in range(2):
            events = await stack.stream("Hi", thinking="disabled")
            assert events.done and events.text() == "All is well."
            assert (await stack.chat("Hi", thinking="disabled")).message["content"] == "All is well."
        assert not await stack.metric("catalejo_upstream_failures_total")
        await at_rest(stack)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_a_refusal_after_the_200_is_the_clients_and_goes_nowhere_else(streamed: bool) -> None:
    """An engine may find out late that a schema cannot be held: no other engine is asked, no breaker counts it."""
    refusal = {"pieces": ["x"], "fail_after": 0, "fault": "error", "code": "bad_request", "retryable": False}
    async with pair([refusal], routing={"breaker_failures": 1}) as (stack, healthy):
        for _ in range(2):
            if streamed:
                (error,) = [c["error"] for c in (await stack.stream("Hi")).chunks if "error" in c]
                assert error["code"] == "engine_refused"
            else:
                answer = await stack.chat("Hi")
                assert answer.status == 400
                assert answer.error["code"] == "engine_refused"
            assert (await stack.chat("Hi")).message["content"] == "All is well."  # round robin: the healthy one
        assert len(healthy.requests()) == 2
        await at_rest(stack)


LATE: dict[str, dict[str, Any]] = {
    "resets": {"pieces": ["Half ", "an answer"], "fail_after": 1, "fault": "reset"},
    "ends": {"pieces": ["Half ", "an answer"], "fail_after": 1, "fault": "eof"},
    "garbage": {"pieces": ["Half ", "an answer"], "fail_after": 1, "fault": "garbage"},
    "half-closes": {"pieces": ["Half ", "an answer"], "fail_after": 1, "fault": "half_close"},
    "fails": {"pieces": ["Half ", "an answer"], "fail_after": 1, "fault": "error", "retryable": True},
}


@pytest.mark.parametrize("fault", LATE.values(), ids=LATE.keys())
async def test_a_fault_after_the_first_token_ends_that_request_alone(fault: dict[str, Any]) -> None:
    """A reset may swallow the token it follows: then the gateway saw none, and the request moves. Never a mixture."""
    async with pair([fault]) as (stack, healthy):
        broken = await stack.stream("Hi")
        errors = [c["error"] for c in broken.chunks if "error" in c]
        if errors:
            assert errors[0]["type"] == "api_error" and errors[0]["message"]
            assert broken.text() == "Half "
            assert not any(broken.finishes()), "a broken answer must not look finished"
        else:
            assert fault["fault"] in ("reset", "half_close")
            assert (broken.text(), broken.finishes()[-1]) == ("All is well.", "stop")
        served = len(healthy.requests())
        assert (await stack.stream("Hi")).text() == "All is well."
        assert len(healthy.requests()) == served + 1
        third = await stack.chat("Hi")  # at the sick engine again, not streamed: an error status, not half an answer
        if third.status == 200:
            assert third.message["content"] == "All is well."
        else:
            assert third.status >= 500 and third.error["code"] == "engine_error"
        await at_rest(stack)


async def test_a_hanging_engine_costs_its_own_requests_only_and_they_end() -> None:
    hang = [{"pieces": ["Half "], "fail_after": 1, "fault": "hang"}]
    async with pair(hang, upstream={"idle_timeout_s": 0.5}) as (stack, _):
        results = await asyncio.gather(*(stack.stream("Hi") for _ in range(6)))
        texts = sorted(r.text() for r in results)
        assert texts == ["All is well."] * 3 + ["Half "] * 3
        for r in results:
            assert r.done or any(c.get("error", {}).get("code") == "engine_timeout" for c in r.chunks)
        await at_rest(stack)


async def test_no_engine_left_is_a_503_with_retry_after_and_recovery_needs_nobody() -> None:
    async with MockEngine(TINY, GOOD) as engine:
        port = engine.port
        async with Stack(engines=[{"url": engine.url, "name": "a"}], routing={"health_interval_s": 0.1}) as stack:
            assert (await stack.chat("Hi")).status == 200
            await engine.stop()
            async with asyncio.timeout(30):
                while (await stack.get("/ready")).status == 200:
                    await asyncio.sleep(0.05)
            refused = await stack.chat("Hi")
            assert (refused.status, refused.error["code"]) == (503, "engine_unavailable")
            assert 1 <= int(refused.headers["retry-after"]) <= 120
            assert (await stack.get("/health")).status == 200
            async with MockEngine(TINY, GOOD, port=port):
                async with asyncio.timeout(30):
                    while (await stack.get("/ready")).status != 200:
                        await asyncio.sleep(0.05)
                assert (await stack.chat("Hi")).status == 200


async def test_breaker_spares_a_failing_engine_and_tries_it_again() -> None:
    settings = {"breaker_failures": 2, "breaker_open_s": 0.5}
    async with pair([{"status": 500}, {"status": 500}, *GOOD], routing=settings) as (stack, healthy):
        for _ in range(8):
            assert (await stack.chat("Hi")).status == 200
        assert await stack.metric('catalejo_routing_decisions_total{policy="round_robin"') >= 8
        assert len(healthy.requests()) == 8  # two first tries failed at a; then the breaker kept all away from it
        await asyncio.sleep(0.6)
        for _ in range(4):
            assert (await stack.chat("Hi")).status == 200
        assert len(healthy.requests()) < 12  # a is asked again, and answers


async def test_one_clients_bad_luck_does_not_shut_the_only_engine() -> None:
    """Three engine failures in a row used to mean ten seconds of 503 for everybody when there was one engine."""
    script = [{"status": 500, "match": "poison"}, *GOOD]
    async with MockEngine(TINY, script) as engine:
        routing = {"breaker_failures": 2, "breaker_open_s": 60, "health_interval_s": 60}
        async with Stack(engines=[{"url": engine.url, "name": "a"}], routing=routing) as stack:
            for _ in range(4):
                assert (await stack.chat("poison")).status >= 500
            assert (await stack.chat("Hi")).status == 200


async def test_storms_of_faults_leave_nothing_behind() -> None:
    faults = [*EARLY.values(), *LATE.values(), {"pieces": ["slow ", "but ", "fine"], "delay_ms": 5}]
    async with pair(faults) as (stack, _):
        await stack.chat("Hi")
        gc.collect()
        tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

        async def client(i: int) -> None:
            try:
                async with asyncio.timeout(0.02 if i % 5 == 0 else 30):  # every fifth leaves early
                    await (stack.stream("Hi") if i % 2 else stack.chat("Hi"))
            except TimeoutError:
                pass

        for _ in range(5):
            await asyncio.gather(*(client(i) for i in range(40)))
        await at_rest(stack)
        await stack.session.close()
        async with asyncio.timeout(30):
            while len(asyncio.all_tasks()) > tasks + 2 or len(os.listdir("/proc/self/fd")) > files + 4:
                await asyncio.sleep(0.1)
                gc.collect()


async def test_a_refused_connection_is_seen_by_ready_at_once_and_healed_by_the_health_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with MockEngine(TINY, GOOD, port=port) as engine:
        async with Stack(engines=[{"url": engine.url}], routing={"health_interval_s": 3600}) as stack:
            assert (await stack.get("/ready")).status == 200
            await engine.stop()
            answer = await stack.chat("x")
            assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
            ready = await stack.get("/ready")
            assert ready.status == 503 and set(ready.json["engines"].values()) == {"down"}
            await engine.start()
            async with asyncio.timeout(30):
                while (await stack.get("/ready")).status != 200:
                    await asyncio.sleep(0.01)
            assert (await stack.chat("x")).status == 200


async def test_an_engine_of_another_model_is_not_used_and_the_operator_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A gateway with one checkpoint in front of an engine with another used to blame its clients."""
    async with MockEngine(TINY, GOOD, vocab_size=77) as engine:
        with caplog.at_level("WARNING", logger="catalejo.routing"):
            async with Stack(engines=[{"url": engine.url, "name": "a"}]) as stack:
                assert (await stack.get("/ready")).status == 503
                assert (await stack.chat("Hi")).error["code"] == "engine_unavailable"
    assert any("another model: 77 vocabulary entries" in r.getMessage() for r in caplog.records)

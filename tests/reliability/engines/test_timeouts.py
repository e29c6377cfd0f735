"""Each phase of an engine's work has its limit; past it the client gets a 504 that names the phase, the limit and the setting,
the engine request is aborted and its place comes back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import numpy as np
import pytest

from engine.wire import GenerateRequest, Reply, Tokens
from gateway.metrics import Metrics
from gateway.upstream.client import EngineClient
from gateway.upstream.settings import UpstreamSettings
from gateway.upstream.stream import EngineTimeout
from tests.api.harness import TINY, Stack
from tests.mock_engine import MockEngine

SLOW_START = {"pieces": ["late"], "first_delay_ms": 60_000}
STUCK = {"pieces": ["Half ", "an answer"], "first_delay_ms": 0, "delay_ms": 60_000}
ENDLESS = {"pieces": ["on and "] * 2000, "delay_ms": 20}
CASES: dict[str, tuple[dict[str, Any], dict[str, float], str]] = {
    "accept": (
        {"fail_after": -1, "fault": "hang"},
        {"accept_timeout_s": 0.3},
        "did not accept the request within 0.3 s",
    ),
    "silence": ({"pieces": ["x"], "fail_after": 0, "fault": "hang"}, {"idle_timeout_s": 0.3}, "sent nothing"),
    "first-token": (SLOW_START, {"first_token_timeout_s": 0.4}, "gave no first token within 0.4 s"),
    "next-token": (STUCK, {"token_timeout_s": 0.3}, "gave no next token within 0.3 s"),
    "total": (ENDLESS, {"total_timeout_s": 0.5}, "did not finish the answer within 0.5 s"),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("answer", "upstream", "said"), CASES.values(), ids=CASES.keys())
async def test_a_phase_that_takes_too_long_is_a_504(
    answer: dict[str, Any], upstream: dict[str, float], said: str, streamed: bool
) -> None:
    async with Stack([answer], engine={"keep_alive_s": 0.05}, upstream=upstream) as stack:
        if streamed:
            async with stack.open_stream("Hi") as response:
                text = (await response.read()).decode()
            assert '"code":"engine_timeout"' in text and said in text
            assert '"finish_reason":"stop"' not in text
        else:
            refused = await stack.chat("Hi")
            assert (refused.status, refused.error["code"]) == (504, "engine_timeout")
            assert said in refused.error["message"] and "(upstream." in refused.error["message"]
        await stack.settled()


async def test_keep_alives_do_not_stand_for_tokens() -> None:
    """A frozen scheduler behind a live HTTP server sends keep-alives for ever."""
    times = {"first_token_timeout_s": 0.5, "idle_timeout_s": 30}
    async with Stack([SLOW_START], engine={"keep_alive_s": 0.02}, upstream=times) as stack:
        assert "gave no first token" in (await stack.chat("Hi")).error["message"]


async def test_a_first_token_that_never_comes_moves_the_request() -> None:
    async with MockEngine(TINY, [SLOW_START]) as one, MockEngine(TINY, [SLOW_START]) as two:
        engines = [{"url": one.url}, {"url": two.url}]
        async with Stack(engines=engines, upstream={"first_token_timeout_s": 0.4}) as stack:
            assert "gave no first token within 0.4 s" in (await stack.chat("Hi")).error["message"]
            assert len(one.requests()) == len(two.requests()) == 1
            await stack.settled()


@pytest.mark.parametrize("answer", [SLOW_START, {"fail_after": -1, "fault": "hang"}], ids=["prefill", "accept"])
async def test_the_total_bounds_all_engines_together(answer: dict[str, Any]) -> None:
    async with MockEngine(TINY, [answer]) as one, MockEngine(TINY, [answer]) as two:
        engines = [{"url": one.url}, {"url": two.url}]
        async with Stack(engines=engines, upstream={"total_timeout_s": 0.3}) as stack:
            refused = await stack.chat("Hi")
            assert (refused.status, refused.error["code"]) == (504, "engine_timeout")
            assert "did not finish the answer within 0.3 s" in refused.error["message"]
            assert len(one.requests()) + len(two.requests()) == 1, "nothing is tried after the last moment"
            await stack.settled()


def request() -> GenerateRequest:
    return GenerateRequest(rid="r", input_ids=np.arange(5, dtype=np.uint32), sampling={"max_new_tokens": 8}, require=())


@contextlib.asynccontextmanager
async def client(url: str, **times: float) -> Any:
    async with aiohttp.ClientSession() as session:
        it = EngineClient("e", url, None, session, UpstreamSettings(**times), Metrics())
        yield it
        it.close()


async def test_a_connection_that_is_never_made_is_its_own_phase() -> None:
    """TCP is accepted, TLS is never answered: what a port of something else looks like."""
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: held.append(writer), "127.0.0.1", 0)
    async with server, client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", connect_timeout_s=0.2) as c:
        with pytest.raises(EngineTimeout, match=r"took no connection within 0.2 s \(upstream.connect_timeout_s\)") as e:
            await c.open(request())
        assert (e.value.phase, e.value.status) == ("connect", 504)
        for writer in held:
            writer.transport.abort()


async def test_a_slow_reader_is_not_the_engines_fault() -> None:
    answer = {"pieces": [f"{i} " for i in range(6)], "delay_ms": 10, "finish": "stop"}
    async with MockEngine(TINY, [answer]) as engine, client(engine.url, token_timeout_s=0.15) as c:
        stream = await c.open(request())
        tokens = 0

        def one(replies: list[Reply]) -> bool:
            nonlocal tokens
            tokens += sum(len(r.output_ids) for r in replies if isinstance(r, Tokens))
            return False

        while not await stream.deliver(one):
            await asyncio.sleep(0.2)
        assert stream.finished and tokens
        stream.close()


@pytest.mark.parametrize("tokens", [0, 1])
async def test_failures_of_accepted_requests_open_the_breaker(tokens: int) -> None:
    """An engine that accepts everything and finishes nothing was never shut out: each acceptance cleared the count."""
    broken = {"pieces": ["Half ", "more"], "fail_after": tokens, "fault": "error", "retryable": True}
    async with (
        MockEngine(TINY, [broken]) as sick,
        MockEngine(TINY, [{"pieces": ["well"], "finish": "stop"}]) as healthy,
    ):
        engines = [{"url": sick.url, "name": "a"}, {"url": healthy.url, "name": "b"}]
        routing = {"policy": "round_robin", "breaker_failures": 2, "breaker_open_s": 600, "health_interval_s": 600}
        async with Stack(engines=engines, routing=routing) as stack:
            for _ in range(6):
                await stack.stream("Hi")
            assert len(sick.requests()) == 2
            assert await stack.metric('catalejo_worker_breaker_open{worker="a"}') == 1

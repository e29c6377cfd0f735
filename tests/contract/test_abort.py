"""A client that leaves, or says so, frees its place long before its answer would have ended."""

from __future__ import annotations

import asyncio

from engine import wire
from tests.contract.client import EngineClient, request, text_ids
from tests.contract.targets import Target

ENDLESS = {"max_new_tokens": 60_000, "temperature": 0.0, "ignore_eos": True}
FREED_WITHIN_S = 20.0  # generous for a busy machine; without an abort the request runs for minutes


def endless(**fields: object) -> wire.GenerateRequest:
    return request(sampling=ENDLESS, **fields)


async def test_leaving_while_tokens_flow(engine: EngineClient) -> None:
    async with engine.open(b"".join(wire.encode_request(endless()))) as response:
        await response.content.readline()
        assert await engine.busy_within(FREED_WITHIN_S)
        response.close()
    assert await engine.idle_within(FREED_WITHIN_S)


async def test_leaving_with_several_choices(engine: EngineClient) -> None:
    async with engine.open(b"".join(wire.encode_request(endless(n=3)))) as response:
        await response.content.readline()
        response.close()
    assert await engine.idle_within(FREED_WITHIN_S)


async def test_leaving_during_prefill(engine: EngineClient) -> None:
    body = b"".join(wire.encode_request(endless(input_ids=text_ids(30_000, 77))))
    async with engine.open(body) as response:
        assert response.status == 200  # admitted: headers come before prefill
        response.close()
    assert await engine.idle_within(FREED_WITHIN_S)


async def test_abort_request_ends_the_stream_with_usage(engine: EngineClient) -> None:
    """What the gateway does when a stop string matched: it still wants the true usage."""
    call = endless(n=2)
    reader = wire.ReplyReader()
    replies: list[wire.Reply] = []
    async with engine.open(b"".join(wire.encode_request(call))) as response:
        replies += reader.feed(await response.content.readline())
        status, _ = await engine.post("/abort_request", {"rid": call.rid})
        assert status == 200
        async for data in response.content.iter_any():
            replies += reader.feed(data)
    reader.finish()
    assert isinstance(replies[-1], wire.Done)
    finishes = [r for r in replies if isinstance(r, wire.Finish)]
    assert {f.index for f in finishes} == {0, 1}
    for finish in finishes:
        said = sum(len(r.output_ids) for r in replies if isinstance(r, wire.Tokens) and r.index == finish.index)
        assert finish.type == "abort"
        assert finish.usage.completion_tokens == said
        assert finish.usage.prompt_tokens == len(call.input_ids)
    assert await engine.idle_within(FREED_WITHIN_S)


async def test_aborting_one_leaves_the_others(engine: EngineClient) -> None:
    victim = endless()
    other = request(sampling={**ENDLESS, "max_new_tokens": 64})
    async with engine.open(b"".join(wire.encode_request(victim))) as response:
        await response.content.readline()
        answer, (status, _) = await asyncio.gather(
            engine.generate(other), engine.post("/abort_request", {"rid": victim.rid})
        )
        response.close()
    assert status == 200
    assert len(answer.choice()) == 64
    assert answer.finish().type == "length"


async def test_aborting_what_does_not_run_is_harmless(engine: EngineClient) -> None:
    status, _ = await engine.post("/abort_request", {"rid": "nobody"})
    assert status == 200


async def test_twenty_clients_come_and_go(engine: EngineClient) -> None:
    async def visit() -> None:
        async with engine.open(b"".join(wire.encode_request(endless()))) as response:
            await response.content.readline()
            response.close()

    await asyncio.gather(*(visit() for _ in range(20)))
    assert await engine.idle_within(2 * FREED_WITHIN_S)
    assert len((await engine.generate(request())).choice()) == 8


async def test_the_mock_records_aborts(target: Target, engine: EngineClient) -> None:
    if target.name != "mock":
        return
    call = endless()
    async with engine.open(b"".join(wire.encode_request(call))) as response:
        await response.content.readline()
        response.close()
    assert await engine.idle_within(FREED_WITHIN_S)
    async with engine.session.get(target.url + "/log?event=abort") as response:
        lines = (await response.text()).splitlines()
    assert any(call.rid in line and '"decode"' in line for line in lines)

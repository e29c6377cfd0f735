"""The route on a real SGLang whose KV pool is small: broken frames, clients that leave at every moment, more work than
fits. Whatever is sent, the scheduler lives: each test ends with an idle engine that answers as before."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine import wire
from tests.contract.client import Answer, EngineClient, image_item, request, text_ids, without_rows

pytestmark = pytest.mark.timeout(900)  # seconds on an idle machine, minutes on a busy one
POOL = 3072
IMAGE, END = 500, 498
SMALL = {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True}
SCHEMA = wire.Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')


@pytest.fixture(autouse=True)
async def alive(engine: EngineClient) -> AsyncIterator[None]:
    """Before and after: nothing runs, and the same request gives the same tokens."""
    before = await engine.generate(request(input_ids=text_ids(40, 7)))
    yield
    assert await engine.idle_within(60)
    after = await engine.generate(request(input_ids=text_ids(40, 7)))
    assert after.choice() == before.choice()


def frame(**fields: Any) -> bytes:
    return b"".join(wire.encode_request(request(**fields)))


def pictured(seed: int, **fields: Any) -> wire.GenerateRequest:
    item = image_item(8, seed, (1, 4, 4))
    ids = text_ids(40, seed)
    ids[8:12] = IMAGE
    return request(input_ids=ids, items=(item,), sampling=SMALL, **fields)


async def retracted(engine: EngineClient) -> float:
    """Requests that lost their place in the pool, by SGLang's own counter."""
    _, text = await engine.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith("sglang:num_retracted_requests_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def spoken(engine: EngineClient, asked: wire.GenerateRequest, begun: asyncio.Event) -> Answer:
    """As `generate`, and says when the first token is there: the request runs."""
    reader, replies = wire.ReplyReader(), []
    async with engine.open(b"".join(wire.encode_request(asked))) as response:
        async for data in response.content.iter_any():
            replies += reader.feed(data)
            if any(isinstance(reply, wire.Tokens) for reply in replies):
                begun.set()
    return Answer(response.status, {}, replies=replies)


async def test_more_than_the_pool_holds_is_done_in_turns(engine: EngineClient) -> None:
    """Answers that outgrow the pool: some requests are retracted and computed again, and none changes for it.

    SGLang counts what a new request may need, not what the running ones still will (with `ignore_eos` it would): a second
    wave gets in, and both together do not fit. The first test here: after a retraction it counts with care for a while."""
    sampling = {"max_new_tokens": 330, "temperature": 0.0, "logit_bias": {str(END): -100.0}}
    asked = [request(input_ids=text_ids(64, 200 + i), sampling=sampling) for i in range(10)]
    begun = [asyncio.Event() for _ in asked]
    waves = [asyncio.create_task(spoken(engine, *one)) for one in zip(asked[:5], begun[:5], strict=True)]
    await asyncio.gather(*(event.wait() for event in begun[:5]))
    waves += [asyncio.create_task(spoken(engine, *one)) for one in zip(asked[5:], begun[5:], strict=True)]
    together = await asyncio.gather(*waves)
    assert all(len(one.choice()) == 330 for one in together), [one.replies[-1] for one in together]
    assert await retracted(engine) > 0
    alone = await engine.generate(dataclasses.replace(asked[9], rid="alone", cache_salt="alone", logprobs=2))
    rows, said = alone.rows(), together[9].choice()
    for step, (row, token) in enumerate(zip(rows, said, strict=True)):
        if row[1] != token:
            (best, _), (second, _) = row[2][:2]
            assert best - second < 2e-4, f"step {step} changed"
            break


@pytest.mark.parametrize("seed", range(4))
async def test_frames_cut_and_changed_anywhere(engine: EngineClient, seed: int) -> None:
    """Every answer is a stream that ends, or a refusal with the contract's body; never a 500."""
    draw = random.Random(seed)
    whole = b"".join(wire.encode_request(pictured(seed + 50, cache_salt=f"attack-{seed}")))

    def broken() -> bytes:
        body = bytearray(whole)
        how = draw.randrange(4)
        if how == 0:
            return bytes(body[: draw.randrange(len(body))])
        if how == 1:
            return bytes(body) + draw.randbytes(draw.randrange(1, 200))
        header = struct.unpack_from("<I", body, 8)[0]
        for _ in range(draw.randrange(1, 4)):
            body[draw.randrange(12 + header if how == 2 else len(body))] = draw.randrange(256)
        return bytes(body)

    answers = await asyncio.gather(*(engine.send(broken()) for _ in range(25)))
    for answer in answers:
        assert answer.status == 200 or 400 <= answer.status < 500, answer.body
        if answer.status != 200:
            assert answer.error["code"]
            assert answer.error["message"]


async def test_headers_that_lie(engine: EngineClient) -> None:
    """Valid frames whose numbers mean nothing."""
    wrong = [
        {"sampling": {"max_new_tokens": 1 << 60}},
        {"sampling": {**SMALL, "stop_token_ids": [511, 0]}},
        {"sampling": {**SMALL, "logit_bias": {"3": -100.0}}},
        {"input_ids": text_ids(1)},
        {"priority": -5},
        {"priority": 1 << 40},
        {"cache_salt": "x" * 200},
        {"rid": "../../" + "a" * 100},
    ]
    for fields in wrong:
        asked = {"sampling": SMALL, **fields}
        try:
            body = frame(**asked)
        except wire.WireError:
            continue
        answer = await engine.send(body)
        assert answer.status == 200 or 400 <= answer.status < 500, (fields, answer.body)


async def leaves(engine: EngineClient, asked: wire.GenerateRequest, moment: str) -> None:
    body = b"".join(wire.encode_request(asked))
    if moment == "in the body":
        host, port = engine.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        auth = "".join(f"{k}: {v}\r\n" for k, v in engine.headers.items())
        head = f"POST {wire.ROUTE} HTTP/1.1\r\nhost: x\r\n{auth}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[: len(body) // 2])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return
    if moment == "at once":
        task = asyncio.create_task(engine.send(body))
        await asyncio.sleep(random.Random(asked.rid).random() * 0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return
    async with engine.open(body) as response:
        if moment == "at the first token":
            await response.content.readany()
        response.close()


@pytest.mark.parametrize("moment", ["in the body", "at once", "after the headers", "at the first token"])
async def test_clients_that_leave(engine: EngineClient, moment: str) -> None:
    long = {"max_new_tokens": 2000, "temperature": 0.0, "ignore_eos": True}
    asked = [
        request(sampling=long),
        request(sampling=long, n=8),
        request(sampling=long, input_ids=text_ids(1500, 3)),
        request(sampling=long, grammar=SCHEMA),
        dataclasses.replace(pictured(3), sampling=long),
        request(sampling=long, logprobs=5),
    ]
    await asyncio.gather(*(leaves(engine, one, moment) for one in asked))
    assert await engine.idle_within(60)


async def test_an_abort_and_a_leaving_client_together(engine: EngineClient) -> None:
    asked = request(sampling={"max_new_tokens": 2000, "temperature": 0.0, "ignore_eos": True}, n=4)
    async with engine.open(b"".join(wire.encode_request(asked))) as response:
        await response.content.readany()
        status, _ = await engine.post("/abort_request", {"rid": asked.rid})
        response.close()
    assert status == 200


async def test_fifty_at_once(engine: EngineClient) -> None:
    """Text, pictures, hashes the engine does not know, schemas, several choices, logprobs, bad frames, leaving clients."""
    known = pictured(99)
    assert (await engine.generate(known)).status == 200

    def one(i: int) -> Any:
        sampling = {**SMALL, "max_new_tokens": 8}
        kinds = [
            lambda: engine.generate(request(input_ids=text_ids(20 + 13 * i, i), sampling=sampling)),
            lambda: engine.generate(pictured(i)),
            lambda: engine.generate(
                dataclasses.replace(pictured(1000 + i), items=(without_rows(image_item(8, 1000 + i, (1, 4, 4))),))
            ),
            lambda: engine.generate(request(grammar=SCHEMA, sampling={"max_new_tokens": 30, "temperature": 0.0})),
            lambda: engine.generate(request(n=3, sampling={**sampling, "temperature": 1.0, "sampling_seed": i})),
            lambda: engine.generate(request(logprobs=3, sampling=sampling)),
            lambda: engine.send(frame()[:-3]),
            lambda: leaves(engine, request(sampling={**sampling, "max_new_tokens": 500}), "after the headers"),
        ]
        return kinds[i % len(kinds)]()

    answers = await asyncio.gather(*(one(i) for i in range(50)))
    expected = [200, 200, 409, 200, 200, 200, 400, None]
    for i, answer in enumerate(answers):
        want = expected[i % 8]
        assert want is None or answer.status == want, (i, answer.status, answer.body)
        if want == 200:
            assert isinstance(answer.replies[-1], wire.Done)


async def test_eight_choices(engine: EngineClient) -> None:
    sampling = {"max_new_tokens": 12, "temperature": 1.0, "sampling_seed": 11, "ignore_eos": True}
    asked = {"n": 8, "sampling": sampling, "input_ids": text_ids(100, 5), "logprobs": 1}
    first, again = [await engine.generate(request(**asked)) for _ in range(2)]
    choices = [first.choice(i) for i in range(8)]
    assert all(len(c) == 12 for c in choices)
    assert len({tuple(c) for c in choices}) > 4
    assert choices == [again.choice(i) for i in range(8)]
    assert all(first.finish(i).usage.prompt_tokens == 100 for i in range(8))


@pytest.mark.parametrize("length", [POOL - 1, POOL, POOL + 1, 4 * POOL, 140_000])
async def test_prompts_around_and_over_the_pool(engine: EngineClient, length: int) -> None:
    """Answered when it fits, refused with the numbers when it never can: not queued for ever."""
    answer: Answer = await engine.generate(request(input_ids=text_ids(length, 1), sampling=SMALL))
    assert answer.status in (200, 400), answer.body
    if answer.status == 400:
        assert answer.error["message"]
    elif not isinstance(answer.replies[-1], wire.Failure):
        assert isinstance(answer.replies[-1], wire.Done)
    if length > POOL:
        assert answer.status == 400 or isinstance(answer.replies[-1], wire.Failure)


async def test_a_request_larger_than_all_is_told_the_numbers(engine: EngineClient) -> None:
    answer = await engine.generate(request(input_ids=text_ids(200_000, 1), sampling=SMALL))
    assert answer.status == 400
    assert "200000" in answer.error["message"].replace(",", "")


async def test_a_body_that_stops_coming(engine: EngineClient) -> None:
    """Others are served meanwhile."""
    body = frame()
    host, port = engine.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    auth = "".join(f"{k}: {v}\r\n" for k, v in engine.headers.items())
    writer.write(
        f"POST {wire.ROUTE} HTTP/1.1\r\nhost: x\r\n{auth}content-length: {len(body)}\r\n\r\n".encode() + body[:40]
    )
    await writer.drain()
    assert (await engine.generate(request())).status == 200
    writer.close()
    await writer.wait_closed()


async def test_wrong_methods_and_types(engine: EngineClient) -> None:
    status, _ = await engine.get(wire.ROUTE)
    assert status == 405
    async with engine.session.post(
        engine.url + wire.ROUTE, json={"input_ids": [1]}, headers=engine.headers
    ) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"]

"""A prefix that left the device and came back from host memory answers as before: index keys travel with K and V.

The server has a KV pool of 3,072 tokens and host pools beside it. The tiny checkpoint attends to 4 blocks of 16 tokens,
so a prompt of 600 tokens chooses among 37 blocks by its index keys: with wrong keys it would read other blocks."""

from __future__ import annotations

import asyncio

from engine import wire
from tests.contract.client import Answer, EngineClient, request, text_ids
from tests.sglang.live.test_equality import assert_equal, mixed

SAMPLING = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True}


async def pushed_out(engine: EngineClient) -> None:
    """More prompts than the device holds."""
    for i in range(7):
        await engine.generate(request(input_ids=text_ids(700, 900 + i), sampling=SAMPLING))


async def from_host(engine: EngineClient) -> float:
    """Tokens that came back from host memory, by SGLang's own counter."""
    _, text = await engine.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith("sglang:load_back_tokens_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def twice(engine: EngineClient, **fields: object) -> tuple[Answer, Answer]:
    """The same request before and after its prefix left the device."""
    asked = {"sampling": SAMPLING, "logprobs": 2, **fields}
    first = await engine.generate(request(**asked))
    await asyncio.sleep(0.5)  # written through in the background
    await pushed_out(engine)
    return first, await engine.generate(request(**asked))


async def test_a_prefix_comes_back_with_its_index_keys(engine: EngineClient, oracle: EngineClient) -> None:
    ids = text_ids(600, 42)
    before = await from_host(engine)
    first, again = await twice(engine, input_ids=ids, cache_salt="hicache")
    assert first.finish().usage.cached_tokens == 0
    assert again.finish().usage.cached_tokens == 592
    assert await from_host(engine) >= before + 592  # else it never left, and nothing was shown
    assert_equal(again, first)
    theirs = await oracle.generate(request(input_ids=ids, sampling=SAMPLING, logprobs=2))
    assert_equal(again, theirs)


async def test_pictures_come_back_too(engine: EngineClient) -> None:
    first, again = await twice(engine, cache_salt="hicache-media", **mixed(11))
    assert again.finish().usage.cached_tokens >= 144
    assert_equal(again, first)


async def test_other_prompts_do_not_find_it(engine: EngineClient) -> None:
    ids = text_ids(600, 43)
    await engine.generate(request(input_ids=ids, sampling=SAMPLING, cache_salt="one"))
    await pushed_out(engine)
    other = await engine.generate(request(input_ids=ids, sampling=SAMPLING, cache_salt="two"))
    assert isinstance(other.replies[-1], wire.Done)
    assert other.finish().usage.cached_tokens == 0

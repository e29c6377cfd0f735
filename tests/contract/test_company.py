"""What a request says does not depend on who else is there: prefixes shared, pictures, choices, neighbours that leave."""

from __future__ import annotations

import asyncio

import numpy as np

from engine import wire
from tests.contract.client import SALTS, EngineClient, image_item, request, text_ids
from tests.contract.targets import Target


def mixed(target: Target, salt: str) -> list[wire.GenerateRequest]:
    """Sixteen requests: half share a long prefix, some have pictures, some several choices."""
    prefix = text_ids(300, 41)
    out = []
    for i in range(16):
        tail = text_ids(5 + 7 * i, 100 + i)
        ids = np.concatenate([prefix, tail]) if i % 2 else tail
        items: tuple[wire.Item, ...] = ()
        if i % 3 == 0:
            at = len(ids) - 5
            ids[at : at + 4] = target.image_token
            items = (image_item(at, 200 + i % 2),)
        sampling = {"max_new_tokens": 6 + i, "temperature": 0.0, "ignore_eos": True}
        out.append(
            request(input_ids=ids, items=items, n=1 + i % 3, sampling=sampling, cache_salt=salt, logprobs=i % 2 or None)
        )
    return out


async def test_the_same_tokens_alone_and_in_company(target: Target, engine: EngineClient) -> None:
    alone = [await engine.generate(r) for r in mixed(target, next(SALTS))]
    together = mixed(target, next(SALTS))

    async def leaves() -> None:
        endless = {"max_new_tokens": 50_000, "temperature": 0.0, "ignore_eos": True}
        call = request(input_ids=text_ids(200, 41), sampling=endless)
        async with engine.open(b"".join(wire.encode_request(call))) as response:
            await response.content.readline()
            response.close()

    results = await asyncio.gather(*(engine.generate(r) for r in together), *(leaves() for _ in range(4)))
    for one, other, asked in zip(alone, results, together, strict=False):
        assert isinstance(other, type(one))
        for index in range(asked.n):
            assert other.choice(index) == one.choice(index)
            assert other.finish(index).usage.completion_tokens == one.finish(index).usage.completion_tokens
    assert await engine.idle_within(4)

"""`cached_tokens` is truthful: page-granular, at most prompt - 1, never across tenants, never across pictures."""

from __future__ import annotations

import itertools

import numpy as np

from engine import wire
from tests.contract.client import SALTS, EngineClient, image_item, request, text_ids
from tests.contract.targets import Target

SEEDS = itertools.count(5000)
LONG = 512


async def cached(engine: EngineClient, ids: np.ndarray, salt: str | None, items: tuple[wire.Item, ...] = ()) -> int:
    answer = await engine.generate(request(input_ids=ids, cache_salt=salt, items=items))
    assert answer.status == 200
    usage = answer.finish().usage
    assert usage.prompt_tokens == len(ids)
    assert 0 <= usage.cached_tokens <= len(ids) - 1
    return usage.cached_tokens


async def page_size(engine: EngineClient) -> int:
    """The engine says it, or two prompts show it: what a one-token longer repeat may have cached."""
    _, info = await engine.get("/model_info")
    if isinstance(info.get("page_size"), int):
        return int(info["page_size"])
    _, server = await engine.get("/get_server_info")
    return int(server["page_size"])


async def test_a_repeated_prompt_is_cached_to_the_page(engine: EngineClient) -> None:
    ids, salt, page = text_ids(LONG, next(SEEDS)), next(SALTS), await page_size(engine)
    assert await cached(engine, ids, salt) == 0
    again = await cached(engine, ids, salt)
    assert again == (LONG - 1) // page * page


async def test_a_shared_prefix_is_cached_to_the_page(engine: EngineClient) -> None:
    ids, salt, page = text_ids(LONG, next(SEEDS)), next(SALTS), await page_size(engine)
    await cached(engine, ids, salt)
    other = np.concatenate([ids[:500], text_ids(40, next(SEEDS))])
    assert await cached(engine, other, salt) == 500 // page * page


async def test_another_salt_shares_nothing(engine: EngineClient) -> None:
    ids = text_ids(LONG, next(SEEDS))
    await cached(engine, ids, next(SALTS))
    assert await cached(engine, ids, next(SALTS)) == 0
    assert await cached(engine, ids, None) == 0


async def test_the_same_answer_from_the_cache(engine: EngineClient) -> None:
    ids, salt = text_ids(LONG, next(SEEDS)), next(SALTS)
    cold = await engine.generate(request(input_ids=ids, cache_salt=salt))
    warm = await engine.generate(request(input_ids=ids, cache_salt=salt))
    assert warm.choice() == cold.choice()


async def test_another_picture_ends_the_prefix_where_it_begins(target: Target, engine: EngineClient) -> None:
    """The placeholder ids are equal; only the hash tells the pictures apart."""
    salt, page = next(SALTS), await page_size(engine)
    begin = 2 * page + 7
    ids = text_ids(begin + 4 + 3 * page, next(SEEDS))
    ids[begin : begin + 4] = target.image_token
    first, second = image_item(begin, next(SEEDS)), image_item(begin, next(SEEDS))
    await cached(engine, ids, salt, (first,))
    assert await cached(engine, ids, salt, (second,)) == begin // page * page
    assert await cached(engine, ids, salt, (first,)) == (len(ids) - 1) // page * page


async def test_a_hit_may_end_inside_a_picture(target: Target, engine: EngineClient) -> None:
    """Another continuation after half of a picture's pages: rows are sliced, the answer is the uncached one."""
    salt, page = next(SALTS), await page_size(engine)
    side = 2 * int(np.ceil(np.sqrt(2 * page)))
    grid = (1, side, side)
    count = side * side // 4
    begin = page // 2
    head = text_ids(begin, next(SEEDS))
    picture = np.full(count, target.image_token, dtype=np.uint32)
    item = image_item(begin, next(SEEDS), grid)
    one = np.concatenate([head, picture, text_ids(5, next(SEEDS))])
    two = np.concatenate([head, picture, text_ids(9, next(SEEDS))])
    cold = await engine.generate(request(input_ids=two, items=(item,)))
    await cached(engine, one, salt, (item,))
    warm = await engine.generate(request(input_ids=two, items=(item,), cache_salt=salt))
    assert warm.finish().usage.cached_tokens > begin
    assert warm.choice() == cold.choice()

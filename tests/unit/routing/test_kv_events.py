"""The exact index: what an engine's cache holds, from its KV events, by a real ZeroMQ publisher."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from engine.wire import Item
from gateway.metrics import Metrics
from gateway.routing.blocks import block_names
from gateway.routing.known_prefixes import PENDING_S, KnownPrefixes
from gateway.routing.kv_events.index import ExactIndex, TooManyBlocks
from gateway.routing.kv_events.messages import BadEvents, decode
from gateway.routing.kv_events.sentinels import Sentinels, sglang_words
from gateway.routing.kv_events.subscriber import SILENCE_S, Subscriber
from gateway.routing.router import Router
from gateway.routing.settings import EngineEndpoint, RoutingSettings
from gateway.upstream.settings import UpstreamSettings
from tests.unit.routing.publisher import CLEARED, Publisher, removed, stored

BLOCK = 16
PAGE = 8


def ids(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(200_000), k=count)


def names(tokens: list[int], salt: str | None = "t", items: tuple[Item, ...] = ()) -> list[bytes]:
    return block_names(np.array(tokens, np.uint32), items, salt, BLOCK)


def apply(index: ExactIndex, *events: dict[str, Any]) -> None:
    for event in decode(msgspec.msgpack.encode([1.0, list(events), None])).events:
        index.apply(event)


def an_index(block: int = BLOCK, most: int = 10_000) -> ExactIndex:
    return ExactIndex(block, most, Sentinels().word)


@pytest.mark.parametrize("page", [1, 4, 8, 12, 16, 32, 48], ids=lambda p: f"page-{p}")
def test_pages_of_any_size_give_our_names(page: int) -> None:
    """In one event, in one per page, and in an order of chains that share a beginning."""
    tokens = ids(1, 96)
    pages = len(tokens) // page
    for step in (1, 3, pages):
        index = an_index()
        for start in range(0, pages, step):
            end = min(start + step, pages)
            parent = start - 1 if start else None
            apply(index, stored(range(start, end), tokens[start * page : end * page], parent, "t"))
        assert index.longest(names(tokens)) == pages * page // BLOCK
        assert index.longest(names(tokens, "other")) == 0 and index.longest(names(tokens, None)) == 0
        assert index.longest(names(tokens[:BLOCK] + ids(2, 64))) == 1


def test_removals_undo_stores_one_for_one() -> None:
    index, shared = an_index(), ids(1, 32)
    one, two = shared + ids(2, 32), shared + ids(3, 32)
    apply(index, stored(range(8), one, None, "t"), stored(range(20, 24), two[32:], 3, "t"))
    assert (index.longest(names(one)), index.longest(names(two))) == (4, 4)
    apply(index, removed(7, 6))
    assert (index.longest(names(one)), index.longest(names(two))) == (3, 4)
    apply(index, removed(23, 22, 21, 20), removed(99))
    assert (index.longest(names(one)), index.longest(names(two))) == (3, 2)
    apply(index, CLEARED)
    assert index.longest(names(one)) == 0 and len(index) == 0 and not index._blocks


def test_a_block_in_two_tiers_is_held_until_both_let_go() -> None:
    index, tokens = an_index(), ids(1, BLOCK)
    apply(index, stored([1, 2], tokens, None, "t"), stored([1, 2], tokens, None, "t", medium="CPU_PINNED"))
    apply(index, removed(1, 2))
    assert index.longest(names(tokens)) == 1
    apply(index, removed(1, 2, medium="CPU_PINNED"))
    assert index.longest(names(tokens)) == 0
    apply(index, stored([1, 2], tokens, None, "t", medium="EXTERNAL"))
    assert index.longest(names(tokens)) == 0, "a pool that engines share is nobody's cache"


def test_a_chain_whose_start_was_missed_is_not_guessed_at() -> None:
    index, tokens = an_index(), ids(1, 64)
    apply(index, stored([4, 5], tokens[32:48], 3, "t"))
    assert (index.longest(names(tokens)), len(index), index.unmapped) == (0, 0, 2)


def test_pictures_are_told_apart_and_unknown_ones_match_nothing() -> None:
    def picture(digit: str) -> Item:
        return Item("image", digit * 64, "u8", 1, (1, 16, 16), ((4, 64),))

    def event(item: Item) -> dict[str, Any]:
        words = sglang_words(item.hash)
        tokens = [7] * 4 + [words[i % 4] for i in range(64)] + [9] * 12
        return stored(range(10), tokens, None, "t")

    tokens = [7] * 4 + [200_025] * 64 + [9] * 12
    mine, other = picture("a"), picture("b")
    sentinels = Sentinels()
    sentinels.remember([mine.hash])
    index = ExactIndex(BLOCK, 1000, sentinels.word)
    apply(index, event(mine))
    assert index.longest(names(tokens, "t", (mine,))) == 5
    assert index.longest(names(tokens, "t", (other,))) == index.longest(names(tokens)) == 0
    apply(index, CLEARED, event(other))  # somebody else's picture: no name of ours
    assert index.longest(names(tokens, "t", (other,))) == 0


def test_the_sentinels_are_those_of_sglang_0_5_23() -> None:
    """Made with its `_compute_pad_values`."""
    assert sglang_words("00" * 32) == SGLANG_ZERO
    table = Sentinels(max_items=2)
    for digit in "abc":
        table.remember([digit * 64])
    assert table.word(sglang_words("a" * 64)[0]) == 0xFFFF_FFFF, "the oldest is forgotten"
    assert table.word(sglang_words("c" * 64)[3]) == 0xCCCC_CCCC
    assert table.word(-5) == 0xFFFF_FFFF and table.word(5) == 5


SGLANG_ZERO = (
    1484253362110568644,
    3301934392075651176,
    318471819182036349,
    2703848712215624371,
)


def test_bigram_pages_count_by_their_first_tokens() -> None:
    index, tokens = an_index(), ids(1, BLOCK + 1)
    apply(index, stored([1, 2], list(pairwise(tokens)), None, "t"))
    assert index.longest(names(tokens)) == 1


def test_an_index_is_bounded() -> None:
    with pytest.raises(TooManyBlocks):
        apply(an_index(most=3), stored(range(4), ids(1, 32), None, "t"))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"ts": 1}),
        msgspec.msgpack.encode([1.0, [{"type": "Other"}], 0]),
        msgspec.msgpack.encode([1.0, [["BlockRemoved", [1]]], 0]),
        msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": ["x"]}], 0]),
    ],
)
def test_what_is_no_event_is_refused(payload: bytes) -> None:
    with pytest.raises(BadEvents):
        decode(payload)


# ------------------------------------------------------------------------------------------ over ZeroMQ
class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def following(publisher: Publisher, clock: Any = None) -> AsyncIterator[tuple[Subscriber, Counter[str]]]:
    seen: Counter[str] = Counter()
    subscriber = Subscriber(
        "e", publisher.endpoint, publisher.replay_endpoint, "", an_index(),
        lambda outcome: seen.update([outcome]), clock or Clock(),
    )  # fmt: skip
    task = asyncio.create_task(subscriber.run())
    try:
        yield subscriber, seen
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(test: Any, timeout: float = 10) -> None:
    async with asyncio.timeout(timeout):
        while not test():
            await asyncio.sleep(0.005)


def page(n: int, tokens: list[int]) -> dict[str, Any]:
    """Block n of `tokens`, one BLOCK long, in a chain with those before."""
    return stored([n], tokens[n * BLOCK : (n + 1) * BLOCK], n - 1 if n else None, "t")


async def heard(publisher: Publisher, subscriber: Subscriber) -> None:
    """PUB drops what is sent before a subscription has arrived: says something harmless until it is heard."""
    before = subscriber._next
    async with asyncio.timeout(10):
        while subscriber._next <= before:
            await publisher.publish(removed(10**6))
            await asyncio.sleep(0.02)


async def test_what_was_published_before_is_asked_for_and_the_index_is_complete() -> None:
    tokens = ids(1, 10 * BLOCK)
    async with Publisher() as engine:
        for n in range(5):
            await engine.publish(page(n, tokens))
        async with following(engine) as (subscriber, seen):
            await until(lambda: subscriber.index.longest(names(tokens)) == 5)
            assert subscriber.complete and subscriber.trusted and seen["replayed"] == 5
            await heard(engine, subscriber)
            await engine.publish(page(5, tokens), page(6, tokens))
            await until(lambda: subscriber.index.longest(names(tokens)) == 7)
            await engine.publish(CLEARED)
            await until(lambda: subscriber.index.longest(names(tokens)) == 0)


async def test_lost_messages_are_asked_for_again() -> None:
    tokens = ids(1, 10 * BLOCK)
    async with Publisher() as engine, following(engine) as (subscriber, seen):
        await heard(engine, subscriber)
        await engine.publish(page(0, tokens))
        await engine.publish(page(1, tokens), lose=True)
        await engine.publish(page(2, tokens), lose=True)
        await engine.publish(page(3, tokens))
        await until(lambda: subscriber.index.longest(names(tokens)) == 4)
        assert seen["gap"] == 1 and subscriber.complete
        assert len(engine.asked) == 2


@pytest.mark.parametrize("replays", [False, True], ids=["no-replay", "short-buffer"])
async def test_what_cannot_be_had_again_makes_the_index_unsure_until_the_cache_is_cleared(replays: bool) -> None:
    tokens = ids(1, 10 * BLOCK)
    async with Publisher(replays=replays, buffer=2) as engine, following(engine) as (subscriber, seen):
        await heard(engine, subscriber)
        await engine.publish(page(0, tokens))
        await until(lambda: subscriber.index.longest(names(tokens)) == 1)
        for n in range(1, 5):
            await engine.publish(page(n, tokens), lose=True)
        await engine.publish(page(5, tokens))
        await until(lambda: seen["gap"] == 1 and subscriber.index.unmapped)
        assert not subscriber.complete and subscriber.index.longest(names(tokens)) == 0
        await engine.publish(CLEARED)
        await engine.publish(page(0, tokens))
        await until(lambda: subscriber.index.longest(names(tokens)) == 1)
        assert subscriber.complete and subscriber.trusted


async def test_a_restarted_engine_begins_anew() -> None:
    tokens, fresh = ids(1, 4 * BLOCK), ids(2, 4 * BLOCK)
    async with Publisher() as engine, following(engine) as (subscriber, seen):
        await heard(engine, subscriber)
        for n in range(4):
            await engine.publish(page(n, tokens))
        await until(lambda: subscriber.index.longest(names(tokens)) == 4)
        engine.restart()
        await engine.publish(page(0, fresh), lose=True)
        await engine.publish(page(1, fresh))
        await until(lambda: subscriber.index.longest(names(fresh)) == 2)
        assert subscriber.index.longest(names(tokens)) == 0
        assert subscriber.complete and seen["restart"] == 1


@pytest.mark.parametrize("raw", [b"\xc1", msgspec.msgpack.encode([2000.0, [stored([1, 2], [1, 2, 3])], 0])])
async def test_a_message_that_makes_no_sense_costs_the_index_its_trust_and_no_more(raw: bytes) -> None:
    tokens = ids(1, 4 * BLOCK)
    async with Publisher() as engine, following(engine) as (subscriber, seen):
        await heard(engine, subscriber)
        await engine.publish(page(0, tokens))
        await until(lambda: subscriber.index.longest(names(tokens)) == 1)
        await engine.publish(raw=raw)
        await until(lambda: seen["bad"] == 1)
        assert not subscriber.complete and subscriber.index.longest(names(tokens)) == 0
        await engine.publish(page(0, tokens))
        await until(lambda: subscriber.index.longest(names(tokens)) == 1)


async def test_a_publisher_that_falls_silent_is_not_believed() -> None:
    clock = Clock()
    async with Publisher() as engine, following(engine, clock) as (subscriber, _):
        await heard(engine, subscriber)
        clock.now += 10 * SILENCE_S
        assert subscriber.trusted, "nothing was sent, so nothing need be said"
        subscriber.sent()
        clock.now += SILENCE_S - 1
        subscriber.sent()
        assert subscriber.trusted
        clock.now += 2
        assert not subscriber.trusted
        await heard(engine, subscriber)
        assert subscriber.trusted


# ------------------------------------------------------------------------------- with the rest of routing
class Told:
    """A follower by hand."""

    def __init__(self, *held: bytes, complete: bool = True, trusted: bool = True) -> None:
        self.index = an_index()
        self.index._held = dict.fromkeys(held, 1)
        self.complete, self.trusted = complete, trusted
        self.asked = 0

    def sent(self) -> None:
        self.asked += 1


def test_the_engines_word_counts_more_than_what_was_sent_long_ago() -> None:
    clock = Clock()
    known, chain = KnownPrefixes(100, clock), [bytes([i] * 8) for i in range(10)]
    known.add("w", chain)
    assert known.longest("w", chain) == 10 and not known.exact("w")
    told = Told(*chain[:4])
    known.follow("w", [told])
    assert known.exact("w") and known.size("w") == 4
    assert known.longest("w", chain) == 10, "it was sent a moment ago: it is being computed"
    clock.now += PENDING_S + 1
    assert known.longest("w", chain) == 4, "evicted by now, as the engine says"
    known.add("w", chain[:4])
    assert not told.asked, "nothing new is to be computed, so no event need follow"
    known.add("w", chain[:5])
    assert told.asked == 1
    told.complete = False
    assert known.longest("w", chain) == 10 and not known.exact("w")
    told.complete, told.trusted = True, False
    assert known.longest("w", chain) == 10 and not known.exact("w")
    told.trusted = True
    known.follow("w", [Told(*chain[:2]), Told(*chain[:6])])
    assert known.longest("w", chain) == 6, "the better of its data-parallel caches"
    known.forget("w")
    assert known.longest("w", chain) == 0 and not known.exact("w")


async def test_a_router_follows_an_engine_that_says_where_it_publishes() -> None:
    tokens = ids(1, 20 * BLOCK)
    async with Publisher() as events:
        await events.publish(stored(range(20), tokens, None, "t"))
        said = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": events.port, "topic": "", "block_size": BLOCK,
                "dp_size": 1, "replay_endpoint_port_base": events.replay_port}  # fmt: skip
        async with engines({"kv_events": said}, {}) as (one, two):
            settings = RoutingSettings(block_tokens=BLOCK, health_interval_s=0.05)
            endpoints = [EngineEndpoint(url=one, name="a"), EngineEndpoint(url=two, name="b")]
            router = Router(endpoints, None, settings, UpstreamSettings(), Metrics())
            await router.start()
            try:
                await until(lambda: router.index_is_exact("a"))
                assert router.indexed_tokens("a") == 20 * BLOCK and not router.index_is_exact("b")
                for _ in range(3):
                    route = router.route_request(np.array(tokens, np.uint32), (), "t")
                    worker, left = router.pick(route)
                    assert (worker.name, left) == ("a", 0), "nothing was ever sent there by this gateway"
                route = router.route_request(np.array(tokens, np.uint32), (), "another tenant")
                assert router.pick(route)[1] == len(tokens)
                router.set_engines(endpoints[1:])
                await until(lambda: not router.leaving)
                assert not router.index_is_exact("a")
            finally:
                await router.close()


@pytest.mark.parametrize(
    "said",
    [
        {"kv_events": {"publisher": "zmq", "endpoint_port_base": 0, "block_size": 16}},
        {"kv_events": {"publisher": "null", "endpoint_port_base": 5557, "block_size": 16}},
        {"kv_events": {"publisher": "zmq", "endpoint_port_base": 5557, "block_size": 1}},
        {"kv_events": "yes"},
        {"kv_events": None},
        [],
    ],
)
async def test_a_description_that_cannot_be_followed_leaves_the_guess(said: Any) -> None:
    async with engines(said) as (url,):
        router = Router([EngineEndpoint(url=url, name="a")], None, RoutingSettings(), UpstreamSettings(), Metrics())
        await router.start()
        assert router._events is not None
        await until(lambda: all(t.done() for t in router._events._tasks.values()))  # type: ignore[union-attr]
        assert router.ready and not router.index_is_exact("a")
        await router.close()


@asynccontextmanager
async def engines(*infos: Any) -> AsyncIterator[list[str]]:
    """Just enough of SGLang to be up and to describe itself."""

    async def fine(request: web.Request) -> web.Response:
        return web.json_response({})

    urls, runners = [], []
    for info in infos:
        app = web.Application()

        async def describe(request: web.Request, info: Any = info) -> web.Response:
            return web.json_response(info)

        app.router.add_get("/server_info", describe)
        for path in ("/health", "/model_info", "/v1/loads"):
            app.router.add_get(path, fine)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield urls
    finally:
        for runner in runners:
            await runner.cleanup()

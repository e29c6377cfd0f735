"""Load on one engine through the contract's route, and the figures of each kind of load.

    mix        requests of a shared prefix and own new tokens: an agent's turn; every prompt new, the prefix cached
    decode     the same prompts again, cached whole: decoding alone
    extend     one request at a time, one token of answer: time to first token by the number of new tokens
A figure whose prompts were not cached as planned says so in `invalid` and must not be quoted."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from engine import wire


@dataclass(frozen=True)
class Plan:
    """Sizes in tokens. `page`: the engine's page, to which prefixes are cached."""

    prefix: int
    own: int
    decode: int
    concurrency: tuple[int, ...]
    new: tuple[int, ...]
    vocab: int
    page: int
    per_user: int = 2
    repeats: int = 5


@dataclass(frozen=True)
class Timed:
    """One request: seconds to the first token, seconds per token after it, tokens, cached tokens."""

    ttft_s: float
    tpot_s: float
    tokens: int
    cached: int
    ids: tuple[int, ...]


class BenchError(Exception):
    """The engine refused or broke a request: there is nothing to measure."""


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, plan: Plan, seed: int) -> None:
        self._session = session
        self._url = url
        self.plan = plan
        self._random = random.Random(seed)

    def draw(self, count: int) -> list[int]:
        return [self._random.randrange(10, self.plan.vocab) for _ in range(count)]

    async def one(self, ids: Sequence[int], tokens: int) -> Timed:
        sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        asked = wire.GenerateRequest(uuid.uuid4().hex, np.asarray(ids, dtype=np.uint32), sampling=sampling)
        body = b"".join(wire.encode_request(asked))
        began = time.perf_counter()
        first = last = 0.0
        said: list[int] = []
        cached = 0
        reader = wire.ReplyReader()
        async with self._session.post(self._url + wire.ROUTE, data=body) as response:
            if response.status != 200:
                raise BenchError(f"HTTP {response.status}: {(await response.text())[:400]}")
            async for data in response.content.iter_any():
                now = time.perf_counter()
                for reply in reader.feed(data):
                    if isinstance(reply, wire.Tokens):
                        first, last = first or now, now
                        said += reply.output_ids
                        cached = cached if reply.cached_tokens is None else reply.cached_tokens
                    elif isinstance(reply, wire.Failure):
                        raise BenchError(f"{reply.code}: {reply.message}")
        if len(said) != tokens:
            raise BenchError(f"{len(said)} tokens came, {tokens} were asked for")
        return Timed(first - began, (last - first) / max(1, tokens - 1), tokens, cached, tuple(said))

    async def many(self, prompts: Sequence[Sequence[int]], tokens: int, concurrency: int) -> tuple[list[Timed], float]:
        """All prompts, so many at a time: (results, seconds)."""
        waiting = iter(prompts)
        done: list[Timed] = []

        async def user() -> None:
            for prompt in waiting:
                done.append(await self.one(prompt, tokens))

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(user())
        return done, time.perf_counter() - began


def loaded(done: Sequence[Timed], seconds: float, cached: int) -> dict[str, Any]:
    """`cached`: tokens that each prompt should have found."""
    ttft, tpot = [t.ttft_s * 1e3 for t in done], [t.tpot_s * 1e3 for t in done]
    return {
        "requests": len(done),
        "output_tokens_per_s": sum(t.tokens for t in done) / seconds,
        "ttft_ms": statistics.median(ttft),
        "ttft_max_ms": max(ttft),
        "tpot_ms": statistics.median(tpot),
        "tpot_max_ms": max(tpot),
        **_validity(done, cached),
    }


def _validity(done: Sequence[Timed], cached: int) -> dict[str, Any]:
    least = min(t.cached for t in done)
    return {} if least >= cached else {"invalid": f"{least} tokens were cached, {cached} should have been"}


async def measure(url: str, plan: Plan, seed: int, token: str | None = None) -> dict[str, Any]:
    """Every figure of one engine, and the greedy ids of one prompt. Same seed, same prompts."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"content-type": wire.CONTENT_TYPE} | ({"authorization": f"Bearer {token}"} if token else {})
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, read_bufsize=1 << 22, headers=headers
    ) as session:
        client = Client(session, url, plan, seed)
        whole = plan.prefix // plan.page * plan.page
        prefix = client.draw(plan.prefix)

        def prompts(count: int, own: int = plan.own) -> list[list[int]]:
            return [prefix + client.draw(own) for _ in range(count)]

        greedy = await client.one(client.draw(300), 32)
        await client.one(prefix, 1)
        await client.many(
            prompts(max(plan.concurrency)), min(16, plan.decode), max(plan.concurrency)
        )  # warm, not counted
        figures: dict[str, Any] = {}
        for users in plan.concurrency:
            asked = prompts(users * plan.per_user)
            figures[f"mix {users}"] = loaded(*await client.many(asked, plan.decode, users), whole)
            again = asked[:users]
            kept = (plan.prefix + plan.own - 1) // plan.page * plan.page
            figures[f"decode {users}"] = loaded(*await client.many(again, plan.decode, users), kept)
        for new in plan.new:
            done = [await client.one(prompt, 1) for prompt in prompts(plan.repeats, new)]
            ttft = [t.ttft_s * 1e3 for t in done]
            figures[f"extend {new}"] = {
                "requests": len(done),
                "ttft_ms": statistics.median(ttft),
                "ttft_min_ms": min(ttft),
                **_validity(done, whole),
            }
        return {"figures": figures, "greedy": greedy.ids, "paths": await paths(session, url)}


async def paths(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """What the plugin counted: which path served layers, and why some were left to SGLang."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    lines = (line for line in text.splitlines() if line.startswith("catalejo_msa_") and "_created" not in line)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

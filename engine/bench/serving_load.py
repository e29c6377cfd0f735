"""Load on one engine through the contract's route, and the figures of each kind of load.

    mix        requests of a shared prefix and own new tokens: an agent's turn; every prompt new, the prefix cached
    decode     the same prompts again, cached whole: decoding alone
    extend     one request at a time, one token of answer: time to first token by the number of new tokens
    far        extend behind a second, longer prefix
A figure whose prompts were not cached as planned says so in `invalid` and must not be quoted."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
import numpy as np

from engine import wire

GRACE_S = 15.0
"""A load that runs this long past the end of the time is cut off."""


@dataclass(frozen=True)
class Plan:
    """Sizes in tokens. `page`: the engine's page, to which prefixes are cached. `far`: 0 for none."""

    prefix: int
    own: int
    decode: int
    concurrency: tuple[int, ...]
    new: tuple[int, ...]
    vocab: int
    page: int
    per_user: int = 2
    repeats: int = 5
    passes: int = 1
    far: int = 0


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


@dataclass
class Outcome:
    """What one server gave: figures by load, one entry a pass; greedy ids of one prompt; paths the plugin counted; loads
    there was no time for. `layers`: microseconds of attention, by serving_profile.py."""

    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    greedy: tuple[int, ...] = ()
    paths: dict[str, float] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, plan: Plan, seed: int) -> None:
        self.session = session
        self.url = url
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
        async with self.session.post(self.url + wire.ROUTE, data=body) as response:
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


class Loads:
    """The loads of one server, in order of value: what the time does not suffice for is left out at the end."""

    def __init__(self, client: Client) -> None:
        self.client, self.plan, self.outcome = client, client.plan, Outcome()
        self.prefix = client.draw(self.plan.prefix)
        self.far_prefix = client.draw(self.plan.far)
        self.mixed: dict[int, list[list[int]]] = {}

    def prompts(self, count: int, own: int, prefix: Sequence[int] | None = None) -> list[list[int]]:
        return [list(self.prefix if prefix is None else prefix) + self.client.draw(own) for _ in range(count)]

    def whole(self, tokens: int) -> int:
        return tokens // self.plan.page * self.plan.page

    def steps(self, profile: Profile | None) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """(name, what runs it). `profile` runs after the first pass: it has been seen to end a server."""
        plan = self.plan
        made: list[tuple[str, Callable[[], Awaitable[None]]]] = [("warm", self.warm)]
        for number in range(plan.passes):
            for users in plan.concurrency:
                made.append((f"mix {users}", partial(self.mix, users)))
                made.append((f"decode {users}", partial(self.decode, users)))
            for new in plan.new:
                made.append((f"extend {new}", partial(self.extend, f"extend {new}", new)))
            if number == 0 and plan.far:
                made.append(("far", self.far))
            if number == 0 and profile is not None:
                made.append(("profile", partial(profile, self)))
        return made

    def _add(self, name: str, figure: dict[str, Any]) -> None:
        self.outcome.figures.setdefault(name, []).append(figure)

    async def warm(self) -> None:
        """Not counted: kernels are compiled and tuned for the shapes that follow, prompts cached whole among them."""
        client, plan = self.client, self.plan
        self.outcome.greedy = (await client.one(client.draw(300), 32)).ids
        await client.one(self.prefix, 1)
        asked = self.prompts(max(plan.concurrency), plan.own)
        await client.many(asked, min(16, plan.decode), len(asked))
        for users in plan.concurrency:
            await client.many(asked[:users], 2, users)
        for new in plan.new:
            await client.one(self.prompts(1, new)[0], 1)

    async def mix(self, users: int) -> None:
        asked = self.prompts(users * self.plan.per_user, self.plan.own)
        self.mixed[users] = asked
        done = await self.client.many(asked, self.plan.decode, users)
        self._add(f"mix {users}", loaded(*done, self.whole(self.plan.prefix)))

    async def decode(self, users: int) -> None:
        kept = self.whole(self.plan.prefix + self.plan.own - 1)
        done = await self.client.many(self.mixed[users][:users], self.plan.decode, users)
        self._add(f"decode {users}", loaded(*done, kept))

    async def extend(self, name: str, new: int, prefix: Sequence[int] | None = None) -> None:
        done = [await self.client.one(prompt, 1) for prompt in self.prompts(self.plan.repeats, new, prefix)]
        ttft = [t.ttft_s * 1e3 for t in done]
        cached = self.whole(self.plan.prefix if prefix is None else len(prefix))
        figure = {"requests": len(done), "ttft_ms": statistics.median(ttft), "ttft_min_ms": min(ttft)}
        self._add(name, figure | _validity(done, cached))

    async def far(self) -> None:
        """Time to first token behind the longer prefix, whose own first pass is a figure too."""
        first = await self.client.one(self.far_prefix, 1)
        self._add("far prefix", {"requests": 1, "ttft_ms": first.ttft_s * 1e3})
        for new in self.plan.new:
            await self.extend(f"far {new}", new, self.far_prefix)


Note = Callable[[str, Outcome], None]
Profile = Callable[[Loads], Awaitable[None]]


async def measure(
    url: str,
    plan: Plan,
    seed: int,
    token: str | None = None,
    *,
    until: float = float("inf"),
    note: Note = lambda name, outcome: None,
    profile: Profile | None = None,
) -> Outcome:
    """Every figure of one engine. Same seed, same prompts. `until`: on the monotonic clock, no load begins after it.
    `note` is told after every load. Raises BenchError, whatever broke."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
    headers = {"content-type": wire.CONTENT_TYPE} | ({"authorization": f"Bearer {token}"} if token else {})
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 22, headers=headers
    ) as session:
        loads = Loads(Client(session, url, plan, seed))
        outcome = loads.outcome
        for name, step in loads.steps(profile):
            began = time.monotonic()
            if began > until and name != "warm":
                outcome.skipped.append(name)
                continue
            await _bounded(name, step, until)
            outcome.seconds[name] = outcome.seconds.get(name, 0.0) + time.monotonic() - began
            await _bounded(f"paths after {name}", partial(_count, session, url, outcome), until)
            note(name, outcome)
        return outcome


async def _bounded(name: str, step: Callable[[], Awaitable[None]], until: float) -> None:
    left = None if until == float("inf") else max(0.0, until - time.monotonic()) + GRACE_S
    try:
        async with asyncio.timeout(left):
            await step()
    except TimeoutError as error:
        raise BenchError(f"{name}: cut off, the time is over") from error
    except aiohttp.ClientError as error:
        raise BenchError(f"{name}: {error!r}") from error
    except ExceptionGroup as group:
        raise BenchError(f"{name}: {group.exceptions[0]!r}") from group


async def _count(session: aiohttp.ClientSession, url: str, outcome: Outcome) -> None:
    outcome.paths = await paths(session, url)


async def paths(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """What the plugin counted: which path served layers, and why some were left to SGLang."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    lines = (line for line in text.splitlines() if line.startswith("catalejo_msa_") and "_created" not in line)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

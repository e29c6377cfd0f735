"""Clients of every kind, and a count of what each saw."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson

from tests.fixtures.media.png import data_url, png
from tests.soak.gateway.process import TENANTS

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MODEL: Final = "tiny"
SCRIPTED: Final = "All is well."
PICTURES: Final = [data_url(png(64 + 28 * i, 48 + 14 * i, seed=i)) for i in range(24)]
BAD: Final[list[tuple[bytes, int]]] = [
    (b"{", 400),
    (b"", 400),
    (b'{"model":"tiny"}', 400),
    (b'{"model":"nobody","messages":[{"role":"user","content":"Hi"}]}', 404),
    (b'{"model":"tiny","messages":[]}', 400),
    (b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"n":99}', 400),
    (b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"temperature":"hot"}', 400),
    (
        b'{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url",'
        b'"image_url":{"url":"data:image/png;base64,aGVsbG8="}}]}]}',
        400,
    ),
]


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that failed although its client stayed. Seconds of the monotonic clock."""

    request_id: str
    kind: str
    begin: float
    end: float
    what: str


@dataclass
class Seen:
    """What clients saw. Tokens are those of the answers' usage, of requests that ended well."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    failed: list[Failed] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Answers that no engine may have given."""

    @property
    def requests(self) -> int:
        return sum(self.kinds.values())


class Traffic:
    def __init__(self, url: str, session: aiohttp.ClientSession, seed: int) -> None:
        self._url = url
        self._address = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._session = session
        self._seed = seed
        self._numbers = itertools.count()
        self.seen = Seen()

    async def run(self, clients: int, until: float) -> None:
        await asyncio.gather(*(self._client(random.Random(f"{self._seed} {i}"), until) for i in range(clients)))

    async def _client(self, rng: random.Random, until: float) -> None:
        kinds: list[tuple[str, int, Callable[[random.Random, str], Awaitable[None]]]] = [
            ("plain", 26, self._plain),
            ("stream", 28, self._stream),
            ("picture", 12, self._picture),
            ("several", 6, self._several),
            ("leaves a stream", 9, self._leave_stream),
            ("leaves a wait", 7, self._leave_wait),
            ("bad body", 9, self._bad),
            ("wrong key", 3, self._wrong_key),
        ]
        names, weights, calls = zip(*kinds, strict=True)
        while time.monotonic() < until:
            i = rng.choices(range(len(kinds)), weights)[0]
            self.seen.kinds[names[i]] += 1
            await calls[i](rng, names[i])
            await asyncio.sleep(rng.uniform(0, 0.1))

    # ------------------------------------------------------------------------------------- kinds of request
    async def _plain(self, rng: random.Random, kind: str) -> None:
        await self._whole(rng, kind, CHAT, *self._chat(rng))

    async def _picture(self, rng: random.Random, kind: str) -> None:
        body, text = self._chat(rng)
        parts = [{"type": "image_url", "image_url": {"url": rng.choice(PICTURES)}} for _ in range(rng.randint(1, 3))]
        body["messages"][-1]["content"] = [*parts, {"type": "text", "text": text}]
        await (self._streamed if rng.random() < 0.5 else self._whole)(rng, kind, CHAT, body, text)

    async def _stream(self, rng: random.Random, kind: str) -> None:
        await self._streamed(rng, kind, CHAT, *self._chat(rng))

    async def _several(self, rng: random.Random, kind: str) -> None:
        text = self._text(rng)
        body = {"model": MODEL, "prompt": [text, text], "n": 2, "max_tokens": rng.randint(1, 8)}
        await self._whole(rng, kind, COMPLETIONS, body, text)

    async def _leave_stream(self, rng: random.Random, kind: str) -> None:
        body, _ = self._chat(rng)
        async with self._post(CHAT, {**body, "stream": True}, "leavers") as response:
            self.seen.left[CHAT] += 1
            for _ in range(rng.randint(0, 4)):
                await response.content.readuntil(b"\n\n")
            response.close()

    async def _leave_wait(self, rng: random.Random, kind: str) -> None:
        """By hand: it must have sent everything when it leaves, or nobody can say whether the gateway knew of it."""
        body = orjson.dumps(self._chat(rng)[0])
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {TENANTS['leavers']}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        _, writer = await asyncio.open_connection(*self._address)
        writer.write(head.encode() + body)
        await writer.drain()
        self.seen.left[CHAT] += 1
        await asyncio.sleep(rng.uniform(0.01, 0.15))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _bad(self, rng: random.Random, kind: str) -> None:
        body, status = rng.choice(BAD)
        tenant = rng.choice(("acme", "zeta"))
        async with self._post(CHAT, body, tenant) as response:
            self.seen.statuses[CHAT, response.status] += 1
            self.seen.outcomes[tenant, "refused"] += 1
            error = orjson.loads(await response.read())["error"]
            if response.status != status or not error["message"]:
                self.seen.wrong.append(f"{body!r}: {response.status} {error}")

    async def _wrong_key(self, rng: random.Random, kind: str) -> None:
        headers = {"authorization": "Bearer wrong", "content-type": "application/json"}
        async with self._session.post(self._url + CHAT, data=b"{}", headers=headers) as response:
            await response.read()
            self.seen.statuses[CHAT, response.status] += 1

    # ------------------------------------------------------------------------------------------ their parts
    def _text(self, rng: random.Random) -> str:
        number = next(self._numbers)
        return f"{number} {' '.join(rng.choices(('red', 'green', 'blue', 'ten'), k=rng.randint(1, 5)))} {number}"

    def _chat(self, rng: random.Random) -> tuple[dict[str, Any], str]:
        text = self._text(rng)
        system = {"role": "system", "content": "Be brief. " + "history " * rng.choice((0, 0, 0, 200, 4000))}
        return {"model": MODEL, "messages": [system, {"role": "user", "content": text}]}, text

    def _post(
        self, route: str, body: dict[str, Any] | bytes, tenant: str, request_id: str = ""
    ) -> aiohttp.client._RequestContextManager:
        headers = {"authorization": f"Bearer {TENANTS[tenant]}", "content-type": "application/json"}
        if request_id:
            headers["x-request-id"] = request_id
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        return self._session.post(self._url + route, data=data, headers=headers)

    async def _whole(self, rng: random.Random, kind: str, route: str, body: dict[str, Any], text: str) -> None:
        tenant, request_id, begin = rng.choice(("acme", "zeta")), f"soak-{next(self._numbers)}", time.monotonic()
        async with self._post(route, body, tenant, request_id) as response:
            raw = await response.read()
        self.seen.statuses[route, response.status] += 1
        if response.status != 200:
            self._fail(tenant, Failed(request_id, kind, begin, time.monotonic(), f"{response.status} {raw[:200]!r}"))
            return
        answer = orjson.loads(raw)
        texts = [c["message"]["content"] if route == CHAT else c["text"] for c in answer["choices"]]
        self._end(tenant, answer["usage"], texts, text, whole=route == CHAT)

    async def _streamed(self, rng: random.Random, kind: str, route: str, body: dict[str, Any], text: str) -> None:
        tenant, request_id, begin = rng.choice(("acme", "zeta")), f"soak-{next(self._numbers)}", time.monotonic()
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        got, usage, done, what = "", None, False, "no [DONE]"
        async with self._post(route, body, tenant, request_id) as response:
            self.seen.statuses[route, response.status] += 1
            async for line in response.content:
                if response.status != 200:
                    what = f"{response.status} {line[:200]!r}"
                elif line == b"data: [DONE]\n":
                    done = True
                elif line.startswith(b"data: "):
                    event = orjson.loads(line[6:])
                    what = str(event["error"]) if "error" in event else what
                    usage = event.get("usage") or usage
                    got += "".join(c["delta"].get("content") or "" for c in event.get("choices", ()))
        if done and usage is not None:
            self._end(tenant, usage, [got], text, whole=True)
        else:
            self._fail(tenant, Failed(request_id, kind, begin, time.monotonic(), what))

    def _end(self, tenant: str, usage: dict[str, Any], texts: list[str], asked: str, *, whole: bool) -> None:
        self.seen.outcomes[tenant, "ok"] += 1
        for name, value in (
            ("input_tokens", usage["prompt_tokens"]),
            ("cached_tokens", usage["prompt_tokens_details"]["cached_tokens"]),
            ("output_tokens", usage["completion_tokens"]),
            ("reasoning_tokens", usage["completion_tokens_details"]["reasoning_tokens"]),
        ):
            self.seen.tokens[tenant, name] += value
        for text in texts:
            if whole and text not in (asked, SCRIPTED):
                self.seen.wrong.append(f"asked {asked!r}, got {text!r}")

    def _fail(self, tenant: str, failed: Failed) -> None:
        self.seen.outcomes[tenant, "failed"] += 1
        self.seen.failed.append(failed)

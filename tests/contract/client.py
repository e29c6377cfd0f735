"""A plain client of the contract: it sends frames, also broken ones, and keeps everything that came back."""

from __future__ import annotations

import asyncio
import io
import itertools
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from engine import wire


@dataclass
class Answer:
    """One answer: `status`, the JSON of a refusal, or the replies of a stream."""

    status: int
    headers: dict[str, str]
    error: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    replies: list[wire.Reply] = field(default_factory=list)

    def choice(self, index: int = 0) -> list[int]:
        return [i for r in self.tokens(index) for i in r.output_ids]

    def tokens(self, index: int = 0) -> list[wire.Tokens]:
        return [r for r in self.replies if isinstance(r, wire.Tokens) and r.index == index]

    def rows(self, index: int = 0) -> list[wire.LogprobRow]:
        return [row for r in self.tokens(index) for row in r.logprobs or []]

    def finish(self, index: int = 0) -> wire.Finish:
        (one,) = [r for r in self.replies if isinstance(r, wire.Finish) and r.index == index]
        return one


class EngineClient:
    def __init__(self, url: str, token: str | None, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session
        self.headers = {"authorization": f"Bearer {token}"} if token else {}

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path, headers=self.headers) as response:
            if "json" in response.headers.get("content-type", ""):
                return response.status, await response.json()
            return response.status, await response.text()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body, headers=self.headers) as response:
            text = await response.text()
            is_json = "json" in response.headers.get("content-type", "") and text
            return response.status, await response.json() if is_json else text

    @asynccontextmanager
    async def open(self, body: bytes, headers: dict[str, str] | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        sent = {"content-type": wire.CONTENT_TYPE, **(self.headers if headers is None else headers)}
        async with self.session.post(self.url + wire.ROUTE, data=io.BytesIO(body), headers=sent) as response:
            yield response

    async def send(self, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        async with self.open(body, headers) as response:
            answer = Answer(response.status, {k.lower(): v for k, v in response.headers.items()})
            if response.status != 200:
                answer.body = await response.json()
                answer.error = answer.body["error"]
                return answer
            reader = wire.ReplyReader()
            async for data in response.content.iter_any():
                answer.replies += reader.feed(data)
            reader.finish()
            return answer

    async def generate(self, request: wire.GenerateRequest) -> Answer:
        return await self.send(b"".join(wire.encode_request(request)))

    async def running(self) -> int:
        _, body = await self.get("/v1/loads")
        return sum(one["num_running_reqs"] + one["num_waiting_reqs"] for one in body["loads"])

    async def busy_within(self, seconds: float) -> bool:
        """Whether something runs or waits, at the latest after so long: SGLang publishes its loads once per step."""
        for _ in range(int(seconds / 0.05)):
            if await self.running():
                return True
            await asyncio.sleep(0.05)
        return False

    async def idle_within(self, seconds: float) -> bool:
        """Whether nothing runs or waits any more, at the latest after so long."""
        for _ in range(int(seconds / 0.05)):
            if await self.running() == 0:
                return True
            await asyncio.sleep(0.05)
        return await self.running() == 0


SALTS = (f"contract-{uuid.uuid4().hex}-{i}" for i in itertools.count())


def text_ids(count: int, seed: int = 0) -> np.ndarray:
    """Ordinary ids of any M3-shaped vocabulary: letters and the like, never a control token."""
    return np.random.default_rng(seed).integers(32, 250, count).astype(np.uint32)


def request(**fields: Any) -> wire.GenerateRequest:
    """A small greedy request under a salt of its own, so that no test sees another's prefix."""
    return wire.GenerateRequest(
        **{
            "rid": uuid.uuid4().hex,
            "input_ids": text_ids(12),
            "sampling": {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True},
            "cache_salt": next(SALTS),
            **fields,
        }
    )


def image_rows(grid: tuple[int, int, int], seed: int, width: int = 588) -> bytes:
    t, h, w = grid
    return np.random.default_rng(seed).integers(0, 256, t * h * w * width).astype(np.uint8).tobytes()


def image_item(offset: int, seed: int, grid: tuple[int, int, int] = (1, 4, 4)) -> wire.Item:
    rows = image_rows(grid, seed)
    digest = wire.item_hash("image", grid, "u8", 1, rows)
    return wire.Item("image", digest, "u8", 1, grid, ((offset, grid[1] * grid[2] // 4),), rows)


def without_rows(item: wire.Item) -> wire.Item:
    return wire.Item(item.modality, item.hash, item.rows, item.t_dup, item.grid, item.ranges)

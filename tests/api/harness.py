"""A real gateway on a free port in front of a mock engine, in the test's own event loop.

async with Stack() as s:
    s.engine.script([{"pieces": ["Hello"]}])
    answer = await s.chat("Say hello")
    events = await s.stream("Say hello")
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
import uvicorn

from gateway.app import create_app
from gateway.config import Settings
from gateway.server.protocol import protocol
from tests.mock_engine import MockEngine

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "engine/checkpoints/tiny"
MODEL = "tiny"
CHAT = "/v1/chat/completions"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        body = self.json
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, body
        return body["error"]

    @property
    def message(self) -> dict[str, Any]:
        assert self.status == 200, self.raw
        return self.json["choices"][0]["message"]


@dataclass
class Events:
    """A whole stream: `chunks` are the parsed data events, `comments` the rest; `done` when [DONE] came last."""

    status: int
    headers: dict[str, str]
    chunks: list[dict[str, Any]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    done: bool = False

    def deltas(self, index: int = 0) -> list[dict[str, Any]]:
        return [c["delta"] for chunk in self.chunks for c in chunk.get("choices", []) if c["index"] == index]

    def text(self, key: str = "content", index: int = 0) -> str:
        return "".join(d.get(key) or "" for d in self.deltas(index))

    def finishes(self, index: int = 0) -> list[str | None]:
        return [c["finish_reason"] for chunk in self.chunks for c in chunk.get("choices", []) if c["index"] == index]

    def calls(self, index: int = 0) -> list[dict[str, Any]]:
        """Tool calls put together as a client does."""
        out: list[dict[str, Any]] = []
        for delta in self.deltas(index):
            for piece in delta.get("tool_calls", []):
                if piece["index"] == len(out):
                    out.append({"id": piece["id"], "type": piece["type"], "name": "", "arguments": ""})
                call = out[piece["index"]]
                call["name"] += piece["function"].get("name", "")
                call["arguments"] += piece["function"].get("arguments", "")
        return out


class Stack:
    def __init__(
        self, script: list[dict[str, Any]] | None = None, *, engine: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.engine = MockEngine(TINY, script, **(engine or {}))
        self._settings = settings
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = ""
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.engine.start()
        options = {"model_path": TINY, "engines": [{"url": self.engine.url}], **self._settings}
        settings = Settings(**options)
        logging.getLogger("catalejo.access").setLevel(logging.INFO)
        self.app = create_app(settings)
        config = uvicorn.Config(
            self.app, port=0, log_config=None, access_log=False, lifespan="on",
            http=protocol(settings.server_header_timeout_s), ws="none",
            timeout_keep_alive=settings.server_keep_alive_s, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server._serve())
        while not self._server.started:
            assert not self._task.done(), "the gateway did not start"
            await asyncio.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()
        assert self._server is not None and self._task is not None
        self._server.should_exit = True
        await self._task
        await self.engine.stop()

    # ------------------------------------------------------------------------------------------- calls
    async def call(self, method: str, path: str, **kwargs: Any) -> Answer:
        async with self.session.request(method, self.url + path, **kwargs) as response:
            headers = {k.lower(): v for k, v in response.headers.items()}
            return Answer(response.status, headers, await response.read())

    async def get(self, path: str, **kwargs: Any) -> Answer:
        return await self.call("GET", path, **kwargs)

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.call(
            "POST", path, data=BytesIO(data), headers={"content-type": "application/json", **(headers or {})}
        )

    async def chat(self, content: Any = "Hello", **fields: Any) -> Answer:
        return await self.post(CHAT, body_of(content, fields))

    async def stream(self, content: Any = "Hello", **fields: Any) -> Events:
        async with self.open_stream(content, **fields) as response:
            return await read_events(response)

    @asynccontextmanager
    async def open_stream(self, content: Any = "Hello", **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        data = orjson.dumps(body_of(content, {"stream": True, **fields}))
        headers = {"content-type": "application/json"}
        async with self.session.post(self.url + CHAT, data=data, headers=headers) as response:
            yield response

    async def metric(self, prefix: str) -> float:
        answer = await self.get("/metrics")
        assert answer.status == 200, "a stack with keys needs admission.protect_metrics false to be asked"
        text = answer.raw.decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(prefix))

    @property
    def sent(self) -> dict[str, Any]:
        """What the engine got last."""
        return self.engine.requests()[-1]

    async def settled(self, timeout: float = 30.0) -> None:
        """Waits until nothing runs on the engine and every place came back."""
        async with asyncio.timeout(timeout):
            while (
                self.engine.running
                or await self.metric("catalejo_in_flight_requests{")
                or await self.metric("catalejo_admission_in_flight")
            ):
                await asyncio.sleep(0.01)

    async def alone(self, timeout: float = 30.0) -> None:
        """Waits until no request but the question itself is open, refused and left ones too."""
        async with asyncio.timeout(timeout):
            while await self.metric("catalejo_http_requests_in_flight") > 1:
                await asyncio.sleep(0.01)


def body_of(content: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """A request with one user message, unless `fields` brings messages. A field given as None is left out."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
    return {k: v for k, v in body.items() if v is not None}


async def read_events(response: aiohttp.ClientResponse) -> Events:
    assert response.status == 200, await response.read()
    assert response.headers["content-type"].startswith("text/event-stream")
    out = Events(response.status, {k.lower(): v for k, v in response.headers.items()})
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        assert not out.done or not line, f"after [DONE]: {line}"
        if line == "data: [DONE]":
            out.done = True
        elif line.startswith("data: "):
            out.chunks.append(orjson.loads(line[6:]))
        elif line:
            assert line.startswith(":"), line
            out.comments.append(line)
    return out

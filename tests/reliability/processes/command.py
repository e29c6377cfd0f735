"""The `catalejo gateway` command as a real process, in front of a mock engine in the test's own loop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.api.harness import MODEL, ROOT, TINY, Answer, body_of
from tests.mock_engine import MockEngine


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Command:
    """Every request has a connection of its own, so that the kernel spreads them over the processes."""

    def __init__(self, folder: Path, workers: int, engines: int = 1, **settings: Any) -> None:
        self.engines = [MockEngine(TINY) for _ in range(engines)]
        self._folder = folder
        self._workers = workers
        self._settings = settings
        self.settings: dict[str, Any] = {}
        self.port, self.operations_port = free_port(), free_port()
        self.scheme = "http"
        self.config = folder / "gateway.yaml"
        self.left_behind: list[str] = []
        """In the temporary folder, after the end."""

    def write(self, **changes: Any) -> None:
        self.settings |= changes
        self.config.write_text(json.dumps(self.settings))

    @property
    def engine(self) -> MockEngine:
        return self.engines[0]

    async def __aenter__(self) -> Self:
        for engine in self.engines:
            await engine.start()
        self.settings = {
            "model_path": str(TINY),
            "engines": [{"url": e.url} for e in self.engines],
            "port": self.port,
            "operations": {"port": self.operations_port, "debug": True},
            "observability": {"log_format": "text"},
            **self._settings,
        }
        self.write()
        command = [sys.executable, "-m", "gateway.cli", "gateway", "--config", str(self.config)]
        self._log = self._folder / "log"
        self._tmp = Path(tempfile.mkdtemp(prefix="cat-"))  # short: it holds a Unix socket
        env = {**os.environ, "TMPDIR": str(self._tmp)}
        with self._log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, "--workers", str(self._workers), cwd=ROOT, env=env, stderr=log, stdout=log
            )
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        try:
            await self.until(self._serves)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise AssertionError(f"the gateway did not start:\n{self.log}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(60):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        for engine in self.engines:
            await engine.stop()
        self.left_behind = [p.name for p in self._tmp.iterdir()]
        shutil.rmtree(self._tmp)

    async def _serves(self) -> bool:
        assert self.process.returncode is None
        if self._workers > 1:
            return "gateway processes serve" in self.log
        try:
            return (await self.operations("/ready")).status == 200
        except aiohttp.ClientError:
            return False

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def until(self, true: Any, seconds: float = 120) -> None:
        async with asyncio.timeout(seconds):
            while not await true():
                await asyncio.sleep(0.05)

    # ------------------------------------------------------------------------------------------- calls
    async def call(self, method: str, path: str, **kwargs: Any) -> Answer:
        return await self._fetch(method, f"{self.scheme}://127.0.0.1:{self.port}{path}", **kwargs)

    async def operations(self, path: str, method: str = "GET") -> Answer:
        return await self._fetch(method, f"http://127.0.0.1:{self.operations_port}{path}")

    async def _fetch(self, method: str, url: str, **kwargs: Any) -> Answer:
        async with self.session.request(method, url, **kwargs) as response:
            headers = {k.lower(): v for k, v in response.headers.items()}
            return Answer(response.status, headers, await response.read())

    async def chat(self, content: str = "Hello", headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        return await self.call(
            "POST", "/v1/chat/completions", json=body_of(content, {"max_tokens": 2, **fields}), headers=headers
        )

    async def complete(self, **fields: Any) -> Answer:
        """The cheapest generation."""
        return await self.call(
            "POST", "/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": 1, **fields}
        )

    async def metric(self, prefix: str) -> float:
        text = (await self.operations("/metrics")).raw.decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(prefix))

    async def process_ids(self) -> set[int]:
        """Of the processes that serve, by asking until the kernel has shown all of them."""
        found: set[int] = set()
        for _ in range(200):
            found.add(int((await self.operations("/debug/tasks")).raw.split()[1].rstrip(b",")))
            if len(found) == self._workers:
                break
        return found

"""Mock engines as processes of their own, and the faults that befall them, one engine at a time."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

ROOT: Final = Path(__file__).resolve().parents[3]
STEP_MS: Final = 10
HALF: Final = ["All ", "is ", "well", "."]
SCRIPTS: Final[dict[str, list[dict[str, Any]]]] = {
    "refuses": [{"status": 500}],
    "no room": [{"status": 503, "headers": {"retry-after": "1"}}],
    "slow": [{"delay_ms": 150}],
    "early reset": [{"fail_after": -1, "fault": "reset"}],
    "late reset": [{"pieces": HALF, "delay_ms": STEP_MS, "fail_after": 2, "fault": "reset"}],
    "late end": [{"pieces": HALF, "delay_ms": STEP_MS, "fail_after": 3, "fault": "eof"}],
    "late error": [{"pieces": HALF, "delay_ms": STEP_MS, "fail_after": 1, "fault": "error", "retryable": True}],
    "half closed": [{"pieces": HALF, "delay_ms": STEP_MS, "fail_after": 2, "fault": "half_close"}],
    "garbage": [{"pieces": HALF, "delay_ms": STEP_MS, "fail_after": 2, "fault": "garbage"}],
    "silent": [{"pieces": HALF, "delay_ms": STEP_MS, "fail_after": 1, "fault": "hang"}],
}
FAULTS: Final = ("kill", "hang", "restart", *SCRIPTS)


@dataclass(slots=True)
class Fault:
    """Seconds of the monotonic clock. `end` is when the engine was well again."""

    kind: str
    engine: str
    begin: float
    end: float = float("inf")


class EngineProcess:
    """Keeps its port over restarts."""

    def __init__(self, name: str) -> None:
        self.name = name
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, session: aiohttp.ClientSession) -> None:
        command = (sys.executable, "-m", "tests.mock_engine", "--port", str(self.port), "--step-ms", str(STEP_MS))
        nowhere = asyncio.subprocess.DEVNULL  # aiohttp tells of every client that went
        self._process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=nowhere, stderr=nowhere)
        async with asyncio.timeout(60):
            while True:
                try:
                    async with session.get(self.url + "/health") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    assert self._process.returncode is None, f"engine {self.name} ended"
                await asyncio.sleep(0.05)

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()

    async def script(self, session: aiohttp.ClientSession, answers: list[dict[str, Any]]) -> None:
        async with session.put(self.url + "/script", json=answers) as answer:
            assert answer.status == 200, await answer.text()

    async def running(self, session: aiohttp.ClientSession) -> int:
        async with session.get(self.url + "/v1/loads") as answer:
            return sum(rank["num_running_reqs"] for rank in (await answer.json())["loads"])


class Trouble:
    """Faults in shuffled rounds, so that each kind comes about equally often."""

    def __init__(self, engines: list[EngineProcess], session: aiohttp.ClientSession, rng: random.Random) -> None:
        self._engines = engines
        self._session = session
        self._rng = rng
        self._round: list[str] = []
        self.faults: list[Fault] = []

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self._rng.uniform(0.5, 2.0))
            if not self._round:
                self._round = self._rng.sample(FAULTS, len(FAULTS))
            await self._one(self._round.pop(), self._rng.choice(self._engines))

    async def _one(self, kind: str, engine: EngineProcess) -> None:
        fault = Fault(kind, engine.name, time.monotonic())
        self.faults.append(fault)
        lasting = self._rng.uniform(1.5, 6.0)
        if kind == "kill":
            await engine.end()
            await asyncio.sleep(lasting)
            await engine.start(self._session)
        elif kind == "restart":
            await engine.end(signal.SIGTERM)
            await engine.start(self._session)
        elif kind == "hang":
            engine.send(signal.SIGSTOP)
            try:
                await asyncio.sleep(lasting)
            finally:
                engine.send(signal.SIGCONT)
        else:
            await engine.script(self._session, SCRIPTS[kind])
            await asyncio.sleep(lasting)
            await engine.script(self._session, [])
        fault.end = time.monotonic()

"""The gateway as a process, and what can be read of it from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import yaml

from tests.soak.gateway.engines import ROOT, EngineProcess

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
IDLE_S: Final = 1.0
TENANTS: Final = {name: f"key-of-{name}-0123456789" for name in ("acme", "zeta", "leavers")}
_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

Samples = list[tuple[str, dict[str, str], float]]


@dataclass(frozen=True, slots=True)
class Footprint:
    """At rest: no request, idle connections dropped."""

    files: int
    threads: int
    tasks: int
    resident_bytes: int


class GatewayProcess:
    def __init__(self, engines: list[EngineProcess], folder: Path, session: aiohttp.ClientSession) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.ledger = folder / "usage.sqlite"
        self._log = folder / "gateway.log"
        self._config = folder / "gateway.yaml"
        self._session = session
        self._config.write_text(yaml.safe_dump(self._settings(engines, port)))
        self._process: asyncio.subprocess.Process | None = None

    def _settings(self, engines: list[EngineProcess], port: int) -> dict[str, Any]:
        """Caches small enough to be full after the warm-up, timeouts short enough to be met, yet longer than the pauses of
        a machine that runs all this on two cores."""
        return {
            "port": port,
            "model_path": str(ROOT / "engine/checkpoints/tiny"),
            "engines": [{"url": e.url, "name": e.name} for e in engines],
            "admission": {"tenants": [{"name": n, "api_keys": [k]} for n, k in TENANTS.items()]},
            "media": {"cache_bytes": 4 << 20, "video_workers": 0, "image_threads": 1},
            "routing": {
                "index_tokens_per_worker": 1 << 16,
                "health_interval_s": 0.5,
                "health_timeout_s": 5.0,
                "breaker_open_s": 2.0,
            },
            "upstream": {"accept_timeout_s": 4.0, "idle_timeout_s": 4.0, "pool_idle_s": IDLE_S},
            "server_keep_alive_s": 1,
            "observability": {
                "ledger": {"path": str(self.ledger)},
                # Nothing listens there: a collector that is down must not leak either.
                "tracing": {"endpoint": "http://127.0.0.1:9", "sample_ratio": 0.05, "timeout_s": 0.5},
            },
        }

    async def start(self) -> None:
        command = (sys.executable, "-m", "gateway.cli", "gateway", "--config", str(self._config))
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=log)
        async with asyncio.timeout(60):
            while not await self.ready():
                assert self._process.returncode is None, self._log.read_text()
                await asyncio.sleep(0.1)

    def reload(self) -> None:
        """SIGHUP: the same configuration once more, which nobody may notice."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    async def ready(self) -> bool:
        try:
            async with self._session.get(self.url + "/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def stop(self) -> int:
        """Its exit status."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
        async with asyncio.timeout(60):
            return await self._process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    @property
    def resident_bytes(self) -> int:
        return int(self._proc("statm").read_text().split()[1]) * PAGE

    def _proc(self, name: str) -> Path:
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/{name}")

    async def metrics(self) -> Samples:
        async with self._session.get(self.url + "/metrics") as answer:
            text = await answer.text()
        found = (_SAMPLE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))
        return [(m[1], dict(_LABEL.findall(m[2] or "")), float(m[3])) for m in found if m]

    async def footprint(self) -> Footprint:
        """Waits until nothing runs and idle connections are gone; then the least of several looks, since health checks
        and this very look come and go."""
        async with asyncio.timeout(60):
            while True:
                samples = await self.metrics()
                held = total(samples, "catalejo_in_flight_requests") + total(samples, "catalejo_admission_in_flight")
                waiting = total(samples, "catalejo_admission_queue_depth")
                if not held and not waiting and total(samples, "catalejo_http_requests_in_flight") == 1:
                    break
                await asyncio.sleep(0.1)
        await asyncio.sleep(3 * IDLE_S)
        files, threads, tasks = [], [], []
        for _ in range(10):
            files.append(len(os.listdir(self._proc("fd"))))
            threads.append(len(os.listdir(self._proc("task"))))
            tasks.append(int(total(await self.metrics(), "catalejo_event_loop_tasks")))
            await asyncio.sleep(0.5)
        return Footprint(min(files), min(threads), min(tasks), self.resident_bytes)

    def access_log(self) -> dict[str, dict[str, Any]]:
        """By request id."""
        out = {}
        with self._log.open("rb") as lines:
            for line in lines:
                if line.startswith(b"{") and (entry := orjson.loads(line)).get("logger") == "catalejo.access":
                    out[entry["request_id"]] = entry
        return out

    def said(self) -> list[str]:
        """Its log, without the requests."""
        with self._log.open() as lines:
            return [line for line in lines if '"catalejo.access"' not in line]

    def failures(self) -> list[str]:
        """Log lines of failures inside the gateway."""
        return [line for line in self.said() if '"exception"' in line or "Traceback" in line]


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(v for n, found, v in samples if n == name and labels.items() <= found.items())

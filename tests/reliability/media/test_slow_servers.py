"""A thousand slow servers, the gateway in a process of its own, and a health check that does not notice."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.api.harness import TINY
from tests.fixtures.media.hostile import Server
from tests.mock_engine import MockEngine

ROOT = Path(__file__).resolve().parents[3]
FULL = bool(os.environ.get("CATALEJO_SOAK"))


@asynccontextmanager
async def gateway_process(config: dict[str, object], folder: Path, engine: str) -> AsyncIterator[str]:
    """`catalejo gateway` on a free port; its URL. The configuration file is JSON, which is YAML too."""
    (folder / "config.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "gateway.cli", "gateway", "--config", str(folder / "config.yaml")]
    command += ["--engine", engine, "--model", str(TINY), "--port", "0"]
    log = folder / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        try:
            yield await _listening(process, log)
        finally:
            process.terminate()
            await process.wait()


async def _listening(process: asyncio.subprocess.Process, log: Path) -> str:
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, log.read_text()
            for entry in os.listdir(f"/proc/{process.pid}/fd"):
                port = _listening_port(f"/proc/{process.pid}/fd/{entry}")
                if port:
                    return f"http://127.0.0.1:{port}"
            await asyncio.sleep(0.1)


def _listening_port(descriptor: str) -> int | None:
    try:
        inode = os.readlink(descriptor).removeprefix("socket:[").removesuffix("]")
    except OSError:
        return None
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] == inode and fields[3] == "0A":
            return int(fields[1].split(":")[1], 16)
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the whole of 127.0.0.0/8")
async def test_health_is_quick_while_every_server_is_slow(tmp_path: Path) -> None:
    many = 1000 if FULL else 60
    hosts = [f"127.1.{n // 250}.{1 + n % 250}" for n in range(many)]
    async with (
        Server(lambda c: c.until_gone(), address="0.0.0.0") as slow,
        MockEngine(TINY, [{"pieces": ["ok"]}]) as engine,
    ):
        endpoints = [f"{host}:{slow.port}" for host in hosts]
        fetch = {"private_endpoints": endpoints, "idle_timeout_s": 300, "total_timeout_s": 300}
        fetch |= {"max_concurrent_per_tenant": many, "connect_timeout_s": 60}
        async with gateway_process({"media": {"fetch": fetch}}, tmp_path, engine.url) as url:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

                async def ask(endpoint: str) -> int:
                    image = {"type": "image_url", "image_url": {"url": f"http://{endpoint}/a.png"}}
                    body = {"model": "tiny", "messages": [{"role": "user", "content": [image]}]}
                    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                        await answer.read()
                        return answer.status

                waiting: list[asyncio.Task[int]] = []
                async with asyncio.timeout(120):
                    for endpoint in endpoints:  # twenty at a time: the subject is slow servers, not a burst of requests
                        waiting.append(asyncio.create_task(ask(endpoint)))
                        while slow.open_now < len(waiting) - 20 * (len(waiting) < many):
                            assert not any(task.done() for task in waiting)
                            await asyncio.sleep(0.01)
                async with session.get(f"{url}/health"):
                    pass
                seconds = []
                for _ in range(100):
                    began = time.perf_counter()
                    async with session.get(f"{url}/health") as answer:
                        assert answer.status == 200
                    seconds.append(time.perf_counter() - began)
                    await asyncio.sleep(0.005)
                assert not any(task.done() for task in waiting)
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                async with asyncio.timeout(60):
                    while slow.open_now:  # the clients have left, so the fetches end
                        await asyncio.sleep(0.05)
    percentile = statistics.quantiles(seconds, n=100)
    print(f"/health with {many} slow servers: p50 {percentile[49] * 1e3:.1f} ms, p99 {percentile[98] * 1e3:.1f} ms")
    if FULL:
        assert percentile[98] < 0.05

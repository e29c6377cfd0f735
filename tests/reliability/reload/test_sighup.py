"""SIGHUP to a real gateway process: what may change changes, streams that run go on, and a broken file changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import yaml

from tests.api.harness import CHAT, ROOT, TINY, Events, body_of, read_events
from tests.mock_engine import MockEngine

OLD, NEW = "sk-the-old-key-of-acme", "sk-the-new-key-of-acme"
SLOW = [{"pieces": [f"{i} " for i in range(20)], "delay_ms": 30}]


class Gateway:
    """`catalejo gateway --config FILE` as a process of its own."""

    def __init__(self, folder: Path, config: dict[str, Any], engine: MockEngine) -> None:
        self.file, self.log = folder / "catalejo.yaml", folder / "log"
        self.engine = engine
        self.config = config
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, **changes: Any) -> None:
        self.config = {**self.config, **changes}
        self.file.write_text(yaml.safe_dump(self.config))

    async def start(self) -> None:
        self.write()
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "gateway", "--config", str(self.file)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=ROOT,
            )
        self.session = aiohttp.ClientSession()
        line = await self.logged("gateway listens on")
        self.url = f"http://127.0.0.1:{line['message'].rsplit(' ', 1)[1]}"
        async with asyncio.timeout(60):
            while not await self.ready():
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.05)

    async def ready(self) -> bool:
        try:
            async with self.session.get(f"{self.url}/ready") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def stop(self) -> None:
        assert self.process is not None
        await self.session.close()
        self.process.send_signal(signal.SIGTERM)
        ended = await asyncio.to_thread(self.process.wait, 30)
        assert ended in (0, -signal.SIGTERM), self.log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(x) for x in self.log.read_bytes().splitlines() if x.startswith(b"{")]

    async def logged(self, text: str, after: int = 0) -> dict[str, Any]:
        """The first line of the log with `text`, not counting the first `after` lines."""
        async with asyncio.timeout(60):
            while True:
                for line in self.lines()[after:]:
                    if text in line["message"]:
                        return line
                assert self.process is None or self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.02)

    async def reload(self, said: str = "the configuration is reloaded", **changes: Any) -> list[str]:
        """Writes the file, sends the signal, waits for the word; gives the messages of the reload."""
        self.write(**changes)
        return await self.hang_up(said)

    async def hang_up(self, said: str) -> list[str]:
        assert self.process is not None
        before = len(self.lines())
        self.process.send_signal(signal.SIGHUP)
        await self.logged(said, before)
        return [line["message"] for line in self.lines()[before:] if line["logger"] == "catalejo.reload"]

    async def status(self, key: str | None = None, model: str = "tiny", **fields: Any) -> tuple[int, Any]:
        async with self.session.post(
            self.url + CHAT, json=body_of("Hi", {"model": model, "max_tokens": 2, **fields}), headers=auth(key)
        ) as response:
            return response.status, await response.json()

    @asynccontextmanager
    async def stream(self, key: str | None = None) -> AsyncIterator[asyncio.Task[Events]]:
        """A stream that has begun; the task gives its events."""
        body = body_of("Hi", {"stream": True})
        async with self.session.post(self.url + CHAT, json=body, headers=auth(key)) as response:
            assert response.status == 200
            yield asyncio.create_task(read_events(response))

    async def metric(self, name: str) -> float:
        async with self.session.get(f"{self.url}/metrics") as response:
            text = (await response.read()).decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def auth(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@asynccontextmanager
async def gateway(folder: Path, **config: Any) -> AsyncIterator[Gateway]:
    async with MockEngine(TINY, SLOW) as engine:
        base = {
            "port": 0,
            "model_path": str(TINY),
            "engines": [{"url": engine.url, "name": "a"}],
            "media": {"video_workers": 1},
        }
        one = Gateway(folder, {**base, **config}, engine)
        await one.start()
        try:
            yield one
        finally:
            await one.stop()


def tenant(*keys: str, **more: Any) -> dict[str, Any]:
    return {"protect_metrics": False, "tenants": [{"name": "acme", "api_keys": list(keys), **more}]}


async def test_streams_run_on_while_keys_names_engines_limits_and_level_change(tmp_path: Path) -> None:
    async with gateway(tmp_path, admission=tenant(OLD)) as g, MockEngine(TINY, [{"pieces": ["b"]}]) as other:
        assert (await g.status(NEW))[0] == 401
        assert (await g.status(OLD, "acme/m3"))[0] == 404
        async with g.stream(OLD) as running:
            told = await g.reload(
                admission=tenant(NEW, requests_per_minute=5),
                model_aliases=["acme/m3"],
                engines=[{"url": other.url, "name": "b"}],
                routes=[{"name": "best", "weights": {"tiny": 1}}],
                observability={"log_level": "warning"},
                api={"max_n": 3},
                said="api.max_n has changed and needs a restart",
            )
            assert not running.done(), "the reload came too late to prove anything"
            events = await running
        assert events.done and events.text().split() == [str(i) for i in range(20)]
        assert (await g.status(OLD))[0] == 401, "a removed key"
        assert [s for s in told if "restart" in s] == ["api.max_n has changed and needs a restart"]
        for model in ("tiny", "acme/m3", "best"):
            assert (await g.status(NEW, model))[0] == 200
        assert (await g.status(NEW, "MiniMaxAI/MiniMax-M3"))[0] == 404, "a removed alias"
        assert len(other.requests()) == 3 and len(g.engine.requests()) == 1
        statuses = [(await g.status(NEW))[0] for _ in range(3)]
        assert statuses == [200, 200, 429], "5 requests per minute, of which 3 were used"
        assert await g.metric('catalejo_config_reloads_total{result="applied"}') == 1
        assert await g.metric("catalejo_config_last_reload_successful") == 1
        assert not [x for x in g.lines() if x["message"] == "the configuration is reloaded"], "the level is warning now"


BROKEN: dict[str, tuple[Any, str]] = {
    "no-yaml": ("a: [", "not YAML"),
    "wrong-value": ({"admission": {"max_in_flight": 0}}, "admission.max_in_flight"),
    "unknown-key": ({"prot": 1}, "prot"),
    "shared-key": ({"admission": {"tenants": [*tenant(NEW)["tenants"], {"name": "b", "api_keys": [NEW]}]}}, "share"),
    "unknown-model": ({"routes": [{"name": "x", "weights": {"m9": 1}}]}, "m9"),
    "no-key-left": ({"admission": {}}, "no API key is left"),
    "two-engines-of-one-name": (
        {"engines": [{"url": "http://127.0.0.1:9", "name": "a"}, {"url": "http://127.0.0.1:7", "name": "a"}]},
        "names must differ",
    ),
    "certificate-that-is-none": (
        {"engines": [{"url": "https://127.0.0.1:9", "tls": {"ca": "/nowhere.pem"}}]},
        "nowhere.pem",
    ),
}


async def test_a_broken_file_changes_nothing_and_says_why(tmp_path: Path) -> None:
    async with gateway(tmp_path, admission=tenant(OLD)) as g:
        good = g.file.read_text()
        async with g.stream(OLD) as running:
            for name, (content, said) in BROKEN.items():
                text = content if isinstance(content, str) else yaml.safe_dump({**g.config, **content})
                g.file.write_text(text)
                told = await g.hang_up("is not reloaded")
                assert any(said in line for line in told), (name, told)
                assert (await g.status(OLD))[0] == 200, name
            g.file.unlink()
            await g.hang_up("is not reloaded")
            await running
        assert await g.metric("catalejo_config_last_reload_successful") == 0
        assert await g.metric('catalejo_config_reloads_total{result="refused"}') == len(BROKEN) + 1
        g.file.write_text(good)
        assert await g.hang_up("is reloaded") == ["the configuration is reloaded; changed: nothing"]
        assert await g.metric("catalejo_config_last_reload_successful") == 1


async def test_many_signals_at_once_end_with_the_last_file(tmp_path: Path) -> None:
    async with gateway(tmp_path) as g:
        assert g.process is not None
        for i in range(20):
            g.write(model_aliases=[f"alias-{i}"])
            g.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(20):
            while (await g.status(None, "alias-19"))[0] != 200:
                await asyncio.sleep(0.02)
        assert (await g.status(None, "alias-18"))[0] == 404


@pytest.mark.slow
async def test_all_processes_of_a_command_reload(tmp_path: Path) -> None:
    async with gateway(tmp_path, admission=tenant(OLD), workers=2) as g:
        await g.logged("2 gateway processes serve")
        async with g.stream(OLD) as running:
            g.write(admission=tenant(NEW))
            assert g.process is not None
            g.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(30):
                while sum("is reloaded" in x["message"] for x in g.lines()) < 2:
                    await asyncio.sleep(0.02)
            assert (await running).done
        for _ in range(10):
            async with aiohttp.ClientSession() as fresh:  # another connection may be another process
                for key, status in ((OLD, 401), (NEW, 200)):
                    async with fresh.get(f"{g.url}/v1/models", headers=auth(key)) as response:
                        assert response.status == status
        g.write(port=1, operations={"port": 2})
        g.process.send_signal(signal.SIGHUP)
        for name in ("port", "operations.port"):
            await g.logged(f"{name} has changed and needs a restart")
        waiting = {x["message"].split()[0] for x in g.lines() if "needs a restart" in x["message"]}
        assert waiting == {"port", "operations.port"}

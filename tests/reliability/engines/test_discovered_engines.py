"""A whole gateway whose engines are found: they serve as soon as they are known and leave without anybody noticing."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import TINY, Stack, read_events
from tests.mock_engine import MockEngine
from tests.unit.routing.discovery.kube import SERVICE, KubeServer, endpoint, slice_

ROUTING = {"policy": "round_robin", "health_interval_s": 0.05}
SLOW = [{"pieces": ["one ", "two ", "three"], "delay_ms": 150, "finish": "stop"}]
QUICK = [{"pieces": ["quick"], "finish": "stop"}]


async def until(stack: Stack, engines: dict[str, str]) -> None:
    async with asyncio.timeout(30):
        while (await stack.get("/ready")).json["engines"] != engines:
            await asyncio.sleep(0.01)


async def test_engines_of_a_file_come_and_go_under_a_running_stream(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"

    def write(*engines: dict[str, Any]) -> None:
        (tmp_path / "new").write_text(json.dumps(engines))
        os.replace(tmp_path / "new", path)

    async with MockEngine(TINY, SLOW) as slow, MockEngine(TINY, QUICK) as quick:
        discovery = {"source": "file", "file": {"path": path, "interval_s": 0.02}}
        async with Stack(engines=[], discovery=discovery, routing=ROUTING) as stack:
            assert (await stack.get("/ready")).status == 503
            write({"url": slow.url, "name": "slow"})
            await until(stack, {"slow": "up"})
            async with stack.open_stream("Hi") as response:
                write({"url": quick.url, "name": "quick"})
                await until(stack, {"quick": "up"})
                assert (await stack.chat("Hi")).message["content"] == "quick"
                events = await read_events(response)
            assert events.done and events.text() == "one two three"
            path.write_text("- half a line: [")
            await asyncio.sleep(0.1)
            assert (await stack.chat("Hi")).message["content"] == "quick"
            assert await stack.metric("catalejo_discovery_failures_total") >= 1
            write()
            await until(stack, {})
            assert (await stack.chat("Hi")).error["code"] == "engine_unavailable"


async def test_two_models_do_not_share_an_engines_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Symptom: one series of metrics, and one drain by an administrator, for engines of two models."""

    def write(model: str, *engines: dict[str, Any]) -> None:
        (tmp_path / "new").write_text(json.dumps(engines))
        os.replace(tmp_path / "new", tmp_path / model)

    def settings(name: str, **more: Any) -> dict[str, Any]:
        file = {"path": tmp_path / name, "interval_s": 0.02}
        return {"name": name, "model_path": TINY, "discovery": {"source": "file", "file": file}, **more}

    async with MockEngine(TINY, SLOW) as one, MockEngine(TINY, QUICK) as two:
        models = [settings("a", engines=[{"url": one.url, "name": "fixed"}]), settings("b")]
        async with Stack(model_path=None, engines=[], models=models, routing=ROUTING) as stack:
            write("a", {"url": two.url, "name": "x"})
            await until(stack, {"fixed": "up", "x": "up"})
            for taken, owner in (("fixed", "a"), ("x", "a")):
                write("b", {"url": two.url, "name": taken})
                async with asyncio.timeout(30):
                    while f"{taken!r} of 'b' is in {owner!r} too" not in caplog.text:
                        await asyncio.sleep(0.01)
                assert (await stack.chat("Hi", model="b")).error["code"] == "engine_unavailable"
            write("a")
            async with asyncio.timeout(30):
                while (await stack.chat("Hi", model="b")).status != 200:  # without another word of b's file
                    await asyncio.sleep(0.01)
            await until(stack, {"fixed": "up", "x": "up"})
            write("a", {"url": two.url})
            write("b", {"url": two.url})
            place = two.url.removeprefix("http://")
            await until(stack, {"fixed": "up", f"a/{place}": "up", f"b/{place}": "up"})


async def test_engines_of_a_service_come_and_go(tmp_path: Path) -> None:
    async with MockEngine(TINY, QUICK) as one, MockEngine(TINY, QUICK) as two, KubeServer(tmp_path / "account") as kube:
        found = {"service": SERVICE, "api_url": kube.url, "credentials": tmp_path / "account", "port": "http"}
        discovery = {"source": "endpointslices", "endpointslices": found}
        fixed = [{"url": two.url, "name": "fixed"}]
        async with Stack(engines=fixed, discovery=discovery, routing=ROUTING) as stack:
            await until(stack, {"fixed": "up"})
            await kube.put(slice_("a", endpoint("127.0.0.1", "pod-0"), port=one.port))
            await until(stack, {"fixed": "up", "pod-0": "up"})
            for _ in range(4):
                assert (await stack.chat("Hi")).status == 200
            assert len(one.requests()) == len(two.requests()) == 2
            await kube.put(slice_("a", endpoint("127.0.0.1", "pod-0", ready=False, terminating=True), port=one.port))
            await until(stack, {"fixed": "up"})
            await kube.put(slice_("b", endpoint("127.0.0.1", "pod-1"), port=two.port))
            assert (await stack.chat("Hi")).status == 200
            await asyncio.sleep(0.1)
            await until(stack, {"fixed": "up"})  # the same address as a configured engine's: known already


async def test_a_source_that_breaks_in_a_way_nobody_foresaw_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.routing.router.DISCOVERY_RESTART_S", 0.02)
    async with MockEngine(TINY, QUICK) as one, KubeServer(tmp_path / "account") as kube:
        found = {"service": SERVICE, "api_url": kube.url, "credentials": tmp_path / "account"}
        await kube.put(slice_("bad", endpoint("127.0.0.1", "pod-0"), endpoints=["what is this"]))
        async with Stack(
            engines=[], discovery={"source": "endpointslices", "endpointslices": found}, routing=ROUTING
        ) as stack:
            async with asyncio.timeout(30):
                while kube.lists < 2:
                    await asyncio.sleep(0.01)
            await kube.put(slice_("bad", endpoint("127.0.0.1", "pod-0"), port=one.port))
            await until(stack, {"pod-0": "up"})

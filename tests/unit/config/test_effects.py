"""Settings that the tests of their own rooms leave at the default: another value changes what it says it changes."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.admission.redis_limits import _client
from gateway.admission.settings import AdmissionSettings
from gateway.api.body import read_body
from gateway.api.settings import ApiSettings
from gateway.errors import ApiError
from gateway.media.files import FileStore
from gateway.media.limits import HostSlots
from gateway.media.metrics import MediaMetrics
from gateway.media.service import MediaService
from gateway.media.settings import FetchSettings, FileSettings, MediaSettings
from gateway.media.types import MediaPart
from gateway.metrics import Metrics
from gateway.observability.ledger import UsageLedger
from gateway.observability.settings import LedgerSettings
from gateway.processes.settings import TlsSettings
from gateway.processes.sockets import ListenError, tls_context
from gateway.routing.discovery import DiscoverySettings
from gateway.routing.policies import RouteRequest, make_policy
from gateway.routing.router import Router
from gateway.routing.settings import EngineEndpoint, RoutingSettings
from gateway.upstream.client import EngineClient, EngineStatus
from gateway.upstream.settings import UpstreamSettings
from tests.api.harness import TINY, Stack
from tests.fixtures.media.hostile import Server, Table, lifted
from tests.fixtures.media.png import data_url, png
from tests.mock_engine import MockEngine
from tests.unit.routing.test_policies import W


# ------------------------------------------------------------------------------------------- requests
class Body:
    """A request whose body comes in pieces of a kilobyte, counted."""

    def __init__(self, kilobytes: int) -> None:
        self.headers: dict[str, str] = {}
        self.left, self.given = kilobytes, 0

    async def receive(self) -> dict[str, Any]:
        self.left -= 1
        self.given += 1
        return {"type": "http.request", "body": b"x" * 1024, "more_body": self.left > 0}


@pytest.mark.parametrize(("drain", "given"), [(0, 3), (10 << 10, 13)])
async def test_drain_body_bytes(drain: int, given: int) -> None:
    body = Body(100)
    with pytest.raises(ApiError) as refused:
        await read_body(body, ApiSettings(max_body_bytes=2048, drain_body_bytes=drain))  # type: ignore[arg-type]
    assert refused.value.status == 413 and body.given == given


@pytest.mark.parametrize(("wait_s", "waits"), [(0.0, False), (3600.0, True)])
async def test_abort_wait_s(wait_s: float, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that does not heed the abort after a stop string, and says nothing more."""

    async def unheeded(self: EngineClient, rid: str, reason: str) -> None:
        return None

    monkeypatch.setattr(EngineClient, "abort", unheeded)
    script = [{"pieces": ["a", "STOP", "b"], "fail_after": 2, "fault": "hang"}]
    async with Stack(script, upstream={"abort_wait_s": wait_s}) as s:
        asking = asyncio.create_task(s.chat("Hi", stop=["STOP"]))
        if waits:
            while not s.engine.requests():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert not asking.done()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        else:
            assert (await asyncio.wait_for(asking, 20)).message["content"] == "a"


async def test_record_blocks(caplog: pytest.LogCaptureFixture) -> None:
    async with Stack(observability={"record_blocks": True}) as s:
        caplog.set_level(logging.INFO, "catalejo.access")
        await s.chat("word " * 2000, max_tokens=1)
    [line] = [r for r in caplog.records if hasattr(r, "blocks")]
    assert len(line.blocks) >= 2 and all(isinstance(b, int) for b in line.blocks)


# ------------------------------------------------------------------------------------------- ports, Redis
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make an encrypted key")
@pytest.mark.parametrize(("word", "opens"), [("open sesame", True), ("wrong", False), (None, False)])
def test_tls_key_password(tmp_path: Path, word: str | None, opens: bool) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -keyout k.pem -out c.pem -days 1 -subj /CN=localhost -passout"
    subprocess.run([*command.split(), "pass:open sesame"], cwd=tmp_path, check=True, capture_output=True)
    password = SecretStr(word) if word is not None else None
    settings = TlsSettings(certificate=tmp_path / "c.pem", key=tmp_path / "k.pem", key_password=password)
    if opens:
        assert tls_context(settings) is not None
    else:
        with pytest.raises(ListenError):
            tls_context(settings)


async def test_redis_username() -> None:
    client = _client(AdmissionSettings(redis_url=SecretStr("redis://h:1"), redis_username="gateway"))
    assert client.connection_pool.connection_kwargs["username"] == "gateway"
    await client.aclose()


# ------------------------------------------------------------------------------------------- routing
def policy(**settings: Any) -> Any:
    return make_policy(RoutingSettings(**settings), lambda: clock[0])


clock = [0.0]
HELD = RouteRequest(256, [b"1"], 256)


def test_hash_load_bound() -> None:
    workers = [W("a"), W("b")]
    request = RouteRequest(10, session="s")
    home = make_policy(RoutingSettings(policy="consistent_hash")).choose(workers, request).name
    busy = [W(w.name, in_flight=3 if w.name == home else 1) for w in workers]
    chosen = {
        bound: make_policy(RoutingSettings(policy="consistent_hash", hash_load_bound=bound)).choose(busy, request).name
        for bound in (1.1, 3.0)
    }
    assert chosen[3.0] == home != chosen[1.1]


@pytest.mark.parametrize(("weight", "chosen"), [(0.0, "b"), (16.0, "a")])
def test_new_weight(weight: float, chosen: str) -> None:
    """`a` has the prefix, and more to compute."""
    made = policy(new_weight=weight, recent_weight=0)
    made.sent("a", HELD)
    assert made.choose([W("a", pending_tokens=100), W("b")], HELD).name == chosen


@pytest.mark.parametrize(("weight", "chosen"), [(0.0, "a"), (1.0, "b")])
def test_resident_weight(weight: float, chosen: str) -> None:
    made = policy(resident_weight=weight)
    assert made.choose([W("a", resident_tokens=1000), W("b")], RouteRequest(10)).name == chosen


@pytest.mark.parametrize(("half_life", "chosen"), [(1.0, "a"), (1e9, "b")])
def test_recent_s(half_life: float, chosen: str) -> None:
    """`a` computed a long prompt a minute ago, `b` a short one just now."""
    made = policy(recent_s=half_life)
    clock[0] = 0.0
    made.sent("a", RouteRequest(10_000))
    clock[0] = 60.0
    made.sent("b", RouteRequest(100))
    assert made.choose([W("a"), W("b")], RouteRequest(10)).name == chosen


@asynccontextmanager
async def router(engines: list[dict[str, Any]], **settings: Any) -> AsyncIterator[Router]:
    discovery = settings.pop("discovery", None)
    made = Router(
        [EngineEndpoint(**e) for e in engines],
        None,
        RoutingSettings(health_interval_s=60, **settings),
        UpstreamSettings(),
        Metrics(),
        discovery=discovery,
    )
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("failures", [1, 3])
async def test_health_failures(failures: int) -> None:
    async with MockEngine(TINY) as engine, router([{"url": engine.url}], health_failures=failures) as r:
        [worker] = r.workers
        silences = 0
        while worker.healthy:
            worker.take_status(EngineStatus(False, silent=True))
            silences += 1
        assert silences == failures


@pytest.mark.parametrize(("size", "known"), [(0, False), (4 << 30, True)])
async def test_known_media_bytes(size: int, known: bool) -> None:
    picture = [{"type": "image_url", "image_url": {"url": data_url(png(64, 64))}}]
    async with Stack(routing={"known_media_bytes": size}) as s:
        await s.chat(picture, max_tokens=1)
        await s.chat(picture, max_tokens=1)
        assert [item["sent"] for r in s.engine.requests() for item in r["items"]] == [True, not known]


async def test_max_engines(tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    listed.write_text(json.dumps([{"url": f"http://127.0.0.1:{port}"} for port in (1, 2, 3)]))
    discovery = DiscoverySettings.model_validate({"source": "file", "file": {"path": listed}, "max_engines": 2})
    async with router([], discovery=discovery) as r, asyncio.timeout(10):
        while not r.workers:
            await asyncio.sleep(0.01)
        assert [w.client.url for w in r.workers] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]


# ------------------------------------------------------------------------------------------- media
def part(url: str, modality: Any = "image") -> MediaPart:
    return MediaPart(modality=modality, param="p", url=url)


@asynccontextmanager
async def media(server: Server | None = None, fetch: dict[str, Any] | None = None, **changes: Any) -> Any:
    lifted_for = lifted(f"pictures.example:{server.port}") if server else lifted()
    settings = MediaSettings(fetch=lifted_for.model_copy(update=fetch or {}), **{"video_workers": 0, **changes})
    service = MediaService(settings, MediaMetrics(), lookup=Table(pictures_example=[["127.0.0.1"]]))
    await service.start()
    try:
        yield service
    finally:
        await service.close()


async def test_max_video_bytes_bounds_videos_alone() -> None:
    async with media(max_video_bytes=1000, video_workers=1) as service:
        with pytest.raises(ApiError) as refused:
            await service.prepare([part(data_url(b"\0" * 1001, "video/mp4"), "video")])
        assert refused.value.code == "media_too_large"
        assert await service.prepare([part(data_url(png(400, 400)))])


@pytest.mark.parametrize(("ttl", "fetches"), [(0.0, 2), (900.0, 1)])
async def test_url_ttl_s(ttl: float, fetches: int) -> None:
    async with Server(lambda c: c.answer("200 OK", png())) as server, media(server, url_ttl_s=ttl) as service:
        for _ in range(2):
            await service.prepare([part(f"http://pictures.example:{server.port}/a.png")])
        assert server.connections == fetches


async def test_user_agent_and_max_url_bytes() -> None:
    async with Server(lambda c: c.answer("200 OK", png())) as server:
        fetch = {"user_agent": "Example/7", "max_url_bytes": 256}
        async with media(server, fetch) as service:
            url = f"http://pictures.example:{server.port}/"
            await service.prepare([part(url)])
            assert "user-agent: example/7" in server.heads[0].lower()
            with pytest.raises(ApiError) as refused:
                await service.prepare([part(url + "x" * 256)])
            assert refused.value.code == "invalid_media_url" and "256" in refused.value.message


async def test_max_concurrent() -> None:
    slots = HostSlots(FetchSettings(max_concurrent=2))
    async with slots.take("a", "x"), slots.take("b", "y"):
        third = asyncio.create_task(slots.take("c", "z").__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not third.done()
    await asyncio.wait_for(third, 1)


@pytest.mark.parametrize("threads", [1, 3])
async def test_resolver_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many names are looked up at once: each waits until that many are, and the fourth for the first three."""
    together = threading.Barrier(threads)
    running, most, lock = 0, 0, threading.Lock()

    def look(host: str, port: int, **more: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(20)
        with lock:
            running -= 1
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr("gateway.media.resolve.socket.getaddrinfo", look)
    service = MediaService(MediaSettings(fetch=FetchSettings(resolver_threads=threads), video_workers=0))
    await service.start()
    try:
        asked = [service.prepare([part(f"http://name-{i}.example/")]) for i in range(3)]
        assert all(isinstance(e, ApiError) for e in await asyncio.gather(*asked, return_exceptions=True))
    finally:
        await service.close()
    assert most == threads


async def test_sweep_every_s() -> None:
    """With a short round a file past its time goes by itself, also when nobody asks for it."""
    now = [1_700_000_000.0]
    store = FileStore(FileSettings(sweep_every_s=0.01, ttl_s=10), MediaMetrics(), lambda: now[0])
    await store.start()
    rounds = asyncio.Semaphore(0)
    sweep = store.sweep

    async def counted() -> int:
        removed = await sweep()
        rounds.release()
        return removed

    store.sweep = counted  # type: ignore[method-assign]
    try:
        async with asyncio.timeout(20):
            for _ in range(3):
                await rounds.acquire()
    finally:
        await store.close()


# ------------------------------------------------------------------------------------------- what is kept
def test_ledger_retention_days(tmp_path: Path) -> None:
    old = tmp_path / "usage-2001-01-01.jsonl"
    for days, kept in ((40_000, True), (1, False)):
        old.write_text("")
        ledger = UsageLedger(LedgerSettings(path=tmp_path, format="jsonl", retention_days=days), Metrics())
        ledger.start()
        ledger.close()
        assert old.exists() == kept

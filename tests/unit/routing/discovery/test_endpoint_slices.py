"""The watcher of EndpointSlices follows the API server through everything that server may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.routing.discovery.endpoint_slices import EndpointSliceSource, engines_of
from gateway.routing.discovery.settings import EndpointSliceDiscovery
from gateway.routing.settings import EngineEndpoint
from tests.unit.routing.discovery.kube import NAMESPACE, SERVICE, KubeServer, endpoint, slice_


class Watcher:
    """A running source; `engines` is what it published last, as {name: url}."""

    def __init__(self) -> None:
        self.published: list[dict[str, str]] = []
        self.failures = 0

    def publish(self, found: Sequence[EngineEndpoint]) -> None:
        self.published.append({str(e.name): e.url for e in found})

    def failed(self, source: str) -> None:
        assert source == "endpointslices"
        self.failures += 1

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while not self.published or set(self.published[-1]) != set(names):
                await asyncio.sleep(0.005)


@asynccontextmanager
async def watching(folder: Path, *slices: dict[str, Any], **settings: Any) -> AsyncIterator[tuple[KubeServer, Watcher]]:
    async with KubeServer(folder) as server:
        await server.put(*slices)
        watcher = Watcher()
        options = {"service": SERVICE, "api_url": server.url, "credentials": folder, **settings}
        source = EndpointSliceSource(EndpointSliceDiscovery(**options), watcher.failed, backoff_s=(0.01, 0.05))
        task = asyncio.create_task(source.run(watcher.publish))
        try:
            yield server, watcher
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_lists_and_then_follows_every_change(tmp_path: Path) -> None:
    async with watching(tmp_path, slice_("a", endpoint("10.0.0.1", "e-0"))) as (server, seen):
        await seen.until("e-0")
        assert seen.published[-1] == {"e-0": "http://10.0.0.1:30000"}
        await server.put(slice_("b", endpoint("10.0.0.2", "e-1")))
        await seen.until("e-0", "e-1")
        await server.put(slice_("a", endpoint("10.0.0.1", "e-0", ready=False)))
        await seen.until("e-1")
        await server.delete("b")
        await seen.until()
        assert (server.lists, server.watches, seen.failures) == (1, 1, 0)


async def test_several_pages_of_slices_are_one_list(tmp_path: Path) -> None:
    slices = [slice_(f"s{i}", endpoint(f"10.0.0.{i}", f"e-{i}")) for i in range(7)]
    async with KubeServer(tmp_path) as server:
        server.page = 3
        await server.put(*slices)
        seen = Watcher()
        settings = EndpointSliceDiscovery(service=SERVICE, api_url=server.url, credentials=tmp_path)
        task = asyncio.create_task(EndpointSliceSource(settings, seen.failed).run(seen.publish))
        await seen.until(*(f"e-{i}" for i in range(7)))
        assert server.lists == 3
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("at_once", [False, True], ids=["error-event", "status-410"])
async def test_a_version_that_is_gone_means_a_new_list(tmp_path: Path, at_once: bool) -> None:
    async with watching(tmp_path, slice_("a", endpoint("10.0.0.1", "e-0"))) as (server, seen):
        await seen.until("e-0")
        server.gone_at_once = at_once
        server.slices["a"] = slice_("a", endpoint("10.0.0.9", "e-9"))  # changed while nobody watched
        server.compact()
        server.drop_watches()
        await seen.until("e-9")
        assert server.lists >= 2


async def test_a_broken_watch_goes_on_from_where_it_was(tmp_path: Path) -> None:
    async with watching(tmp_path, slice_("a", endpoint("10.0.0.1", "e-0"))) as (server, seen):
        await seen.until("e-0")
        for i in range(1, 4):
            server.drop_watches()
            await server.put(slice_("a", endpoint(f"10.0.0.{i}", f"e-{i}")))
            await seen.until(f"e-{i}")
        assert server.lists == 1, "nothing was missed, so nothing is listed anew"


async def test_a_bookmark_moves_the_version_on_and_changes_no_engine(tmp_path: Path) -> None:
    async with watching(tmp_path, slice_("a", endpoint("10.0.0.1", "e-0"))) as (server, seen):
        await seen.until("e-0")
        await server.bookmark()
        await server.put(slice_("b", endpoint("10.0.0.2", "e-1")))  # so that the bookmark has been read
        await seen.until("e-0", "e-1")
        server.oldest = server.version  # the list's own version is gone, the bookmark's is not
        server.drop_watches()
        await server.put(slice_("b", endpoint("10.0.0.3", "e-2")))
        await seen.until("e-0", "e-2")
        assert server.lists == 1


@pytest.mark.parametrize("size", [1, 100, 5000])
async def test_events_may_be_cut_anywhere_and_be_large(tmp_path: Path, size: int) -> None:
    many = [endpoint(f"10.0.{i // 200}.{i % 200}", f"pod-{i}") for i in range(20 if size == 1 else 1000)]
    async with watching(tmp_path) as (server, seen):
        await seen.until()
        server.chop = size
        await server.put(slice_("a", *many))  # 1000 endpoints: over 150 KB in one line
        await seen.until(*(f"pod-{i}" for i in range(len(many))))


async def test_a_new_token_is_read_and_an_old_one_refused(tmp_path: Path) -> None:
    async with watching(tmp_path, slice_("a", endpoint("10.0.0.1", "e-0"))) as (server, seen):
        await seen.until("e-0")
        server.token = "second"  # the server's opinion changes first, the file a moment later
        server.drop_watches()
        async with asyncio.timeout(5):
            while not server.refused:
                await asyncio.sleep(0.005)
        assert seen.published[-1] == {"e-0": "http://10.0.0.1:30000"}, "the last list holds"
        server.rotate("second")
        await server.put(slice_("a", endpoint("10.0.0.2", "e-1")))
        await seen.until("e-1")
        assert seen.failures


@pytest.mark.parametrize("status", [403, 500, 503])
async def test_refusals_keep_the_list_and_are_waited_out(tmp_path: Path, status: int) -> None:
    async with watching(tmp_path, slice_("a", endpoint("10.0.0.1", "e-0"))) as (server, seen):
        await seen.until("e-0")
        server.status = status
        server.drop_watches()
        async with asyncio.timeout(5):
            while server.refused < 3:
                await asyncio.sleep(0.005)
        assert len(seen.published) == 1
        server.status = None
        await server.put(slice_("a", endpoint("10.0.0.2", "e-1")))
        await seen.until("e-1")


async def test_a_missing_right_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(tmp_path) as (server, seen):
        await seen.until()
        server.status = 403
        server.drop_watches()
        async with asyncio.timeout(5):
            while not seen.failures:
                await asyncio.sleep(0.005)
    assert "needs list and watch on endpointslices" in caplog.text


async def test_the_server_away_at_the_start_is_no_end(tmp_path: Path) -> None:
    async with KubeServer(tmp_path) as server:
        url = server.url
    seen = Watcher()
    settings = EndpointSliceDiscovery(service=SERVICE, api_url=url, credentials=tmp_path)
    task = asyncio.create_task(EndpointSliceSource(settings, seen.failed, (0.01, 0.02)).run(seen.publish))
    async with asyncio.timeout(5):
        while seen.failures < 3:
            await asyncio.sleep(0.005)
    assert not task.done() and not seen.published
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def engines(*slices: dict[str, Any], port: int | str | None = None) -> dict[str, str]:
    return {str(e.name): e.url for e in engines_of(slices, port, "http", "engine.m3.svc")}


def test_which_endpoints_count() -> None:
    found = engines(
        slice_("a",
               endpoint("10.0.0.1", "ready"),
               endpoint("10.0.0.2", "unknown", ready=None),
               endpoint("10.0.0.3", "not-ready", ready=False),
               endpoint("10.0.0.4", "leaving", ready=False, serving=True, terminating=True),
               endpoint("10.0.0.5", "published-not-ready-and-leaving", ready=True, terminating=True),
               endpoint("10.0.0.6"),
               {"addresses": [], "conditions": {}},
               {"addresses": ["10.0.0.7"]}),
    )  # fmt: skip
    assert found == {
        "ready": "http://10.0.0.1:30000",
        "unknown": "http://10.0.0.2:30000",
        "10.0.0.6:30000": "http://10.0.0.6:30000",
        "10.0.0.7:30000": "http://10.0.0.7:30000",
    }


def test_two_families_and_two_slices_are_one_engine() -> None:
    assert engines(
        slice_("six", endpoint("fd00::1", "e-0"), family="IPv6"),
        slice_("four", endpoint("10.0.0.1", "e-0")),
        slice_("again", endpoint("10.0.0.1", "e-0")),
        slice_("name", endpoint("engine.example", "e-1"), family="FQDN"),
    ) == {"e-0": "http://10.0.0.1:30000"}
    assert engines(slice_("six", endpoint("fd00::1"), family="IPv6")) == {"[fd00::1]:30000": "http://[fd00::1]:30000"}


@pytest.mark.parametrize(
    ("port", "url"), [(None, None), (8001, "8001"), ("http", "8000"), ("metrics", "8001"), (9, None)]
)
def test_which_port(port: int | str | None, url: str | None) -> None:
    ports = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 8001, "protocol": "TCP"}]
    found = engines(slice_("a", endpoint("10.0.0.1", "e"), ports=ports), port=port)
    assert found == ({"e": f"http://10.0.0.1:{url}"} if url else {})


def test_settings_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**more: Any) -> EndpointSliceSource:
        options = {"service": SERVICE, "credentials": tmp_path, **more}
        return EndpointSliceSource(EndpointSliceDiscovery(**options), lambda source: None)

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match="this is no pod"):
        make(namespace=NAMESPACE)
    with pytest.raises(ValueError, match="give a namespace"):
        make(api_url="http://127.0.0.1:1")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert make(namespace=NAMESPACE)._api._url == "https://[fd00::1]:6443"
    assert EndpointSliceDiscovery(service="a", port="8000").port == 8000

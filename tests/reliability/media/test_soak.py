"""Floods: slow servers, big bodies, failures by the hundred. What must hold is counted, not timed.

CATALEJO_SOAK=1 runs the full sizes (1,000 slow servers, 50 bodies of 60 MiB), and then checks times too.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.media.service import MediaService
from gateway.media.settings import MediaSettings
from gateway.media.types import MediaPart
from tests.fixtures.media.hostile import Connection, Server, Table, lifted
from tests.fixtures.media.png import data_url, png

FULL = bool(os.environ.get("CATALEJO_SOAK"))
HOST = "pictures.example"
MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def running(server: Server, fetch: dict[str, Any], **changes: Any) -> AsyncIterator[MediaService]:
    settings = MediaSettings(fetch=lifted(f"{HOST}:{server.port}", **fetch), **{"video_workers": 0, **changes})
    service = MediaService(settings, lookup=Table(pictures_example=[["127.0.0.1"]]))
    await service.start()
    try:
        yield service
    finally:
        await service.close()


def picture(server: Server, name: object) -> MediaPart:
    return MediaPart("image", "messages[0].content[0]", f"http://{HOST}:{server.port}/{name}")


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE


async def test_a_thousand_slow_servers_hold_up_nobody_else() -> None:
    many = 1000 if FULL else 100
    fetch = {
        "max_concurrent_per_host": many,
        "max_concurrent_per_tenant": many,
        "connect_timeout_s": 60,
        "idle_timeout_s": 120,
        "total_timeout_s": 120,
    }
    async with Server(lambda c: c.until_gone()) as server:
        async with running(server, fetch) as service:
            waiting = [asyncio.create_task(service.prepare([picture(server, n)])) for n in range(many)]
            while server.open_now < many:
                assert not any(task.done() for task in waiting)
                await asyncio.sleep(0.01)
            lags = []
            for seed in range(50):
                began = time.perf_counter()
                await asyncio.sleep(0.001)
                lags.append(time.perf_counter() - began - 0.001)
                if seed % 10 == 0:
                    await service.prepare([MediaPart("image", "p", data_url(png(64, 64, seed)))])
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            while server.open_now:
                await asyncio.sleep(0.01)
    if FULL:
        assert statistics.quantiles(lags, n=100)[98] < 0.05, "a health check would be answered within 50 ms"


async def test_a_crowd_above_the_limit_waits_outside_and_other_hosts_pass() -> None:
    async with Server(lambda c: c.until_gone()) as slow, Server(lambda c: c.answer("200 OK", png())) as quick:
        settings = MediaSettings(
            fetch=lifted(f"{HOST}:{slow.port}", f"quick.example:{quick.port}", max_concurrent_per_host=5)
        )
        table = Table(pictures_example=[["127.0.0.1"]], quick_example=[["127.0.0.1"]])
        service = MediaService(settings, lookup=table)
        await service.start()
        waiting = [asyncio.create_task(service.prepare([picture(slow, n)])) for n in range(30)]
        while slow.open_now < 5:
            await asyncio.sleep(0.01)
        await service.prepare([MediaPart("image", "p", f"http://quick.example:{quick.port}/")])
        assert slow.connections == 5
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(r, ApiError) and r.code == "media_fetch_timeout" for r in results)
        await service.close()


@pytest.mark.slow  # resident memory of a shared test process says little; run alone
async def test_memory_stays_bounded_under_many_big_bodies() -> None:
    many, size, limit = (50, 60 * MIB, 256 * MIB) if FULL else (12, 12 * MIB, 32 * MIB)
    piece = b"\x89PNG\r\n\x1a\n" + bytes(MIB - 8)

    async def script(c: Connection) -> None:
        await c.answer("200 OK", length=size)
        for _ in range(size // MIB):
            await c.send(piece)

    fetch = {"max_concurrent_per_host": many, "idle_timeout_s": 120, "total_timeout_s": 120, "min_rate_bytes_s": 0}
    async with Server(script) as server:
        async with running(server, fetch, max_bytes_in_flight=limit) as service:
            gc.collect()
            before = resident_bytes()
            highest, most_reserved = before, 0.0
            tasks = [asyncio.create_task(service.prepare([picture(server, n)])) for n in range(many)]
            while not all(task.done() for task in tasks):
                highest = max(highest, resident_bytes())
                reserved = service.metrics.registry.get_sample_value("catalejo_media_in_flight_bytes") or 0
                most_reserved = max(most_reserved, reserved)
                await asyncio.sleep(0.002)
            results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(r, ApiError) and r.code.startswith("media_") for r in results), results
    assert server.connections == many
    assert 0 < most_reserved <= limit
    # First parts, the server's own pieces and socket buffers come on top.
    allowed = limit + many * 2 * MIB + 48 * MIB
    assert highest - before < allowed, f"{(highest - before) / MIB:.0f} MiB, allowed {allowed / MIB:.0f}"


async def test_nothing_leaks_over_hundreds_of_failures() -> None:
    async def script(c: Connection) -> None:
        kind = int(c.head.split("/")[1].split(" ")[0]) % 6
        if kind == 0:
            await c.answer("200 OK", png())
        elif kind == 1:
            await c.answer("404 Not Found")
        elif kind == 2:
            await c.answer("200 OK", png(), length=10_000_000)
        elif kind == 3:
            await c.answer("302 Found", headers="Location: http://10.0.0.1/\r\n")
        elif kind == 4:
            await c.send(b"rubbish\r\n\r\n")
        else:
            await c.until_gone()

    async with Server(script) as server:
        fetch = {"idle_timeout_s": 0.1, "total_timeout_s": 1.0}
        async with running(server, fetch) as service:
            await asyncio.gather(*(service.prepare([picture(server, n)]) for n in range(6)), return_exceptions=True)
            await _settled(server)
            files, tasks, threads = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), threading.active_count()
            for batch in range(1, 6):
                work = [asyncio.create_task(service.prepare([picture(server, 60 * batch + n)])) for n in range(60)]
                await asyncio.sleep(0.02)
                for task in work[::7]:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
            await _settled(server)
            assert len(asyncio.all_tasks()) == tasks
            assert len(os.listdir("/proc/self/fd")) <= files
            assert threading.active_count() <= threads + 2 + (os.cpu_count() or 1)
            assert service.metrics.registry.get_sample_value("catalejo_media_in_flight_bytes") == 0


async def _settled(server: Server) -> None:
    while server.open_now:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    gc.collect()

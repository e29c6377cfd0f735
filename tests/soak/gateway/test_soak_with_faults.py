"""A gateway, three engines that keep failing, and clients of every kind, for SOAK_SECONDS (60; `make soak`: 20 minutes).

At the end slots, tasks, files, threads and memory are where they were after the warm-up; only requests on a faulty engine
failed; every answer was the right one; clients, metrics and ledger counted the same.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np
import pytest

from gateway.observability.ledger.report import read, totals
from tests.soak.gateway.engines import EngineProcess, Fault, Trouble
from tests.soak.gateway.process import Footprint, GatewayProcess, Samples, total
from tests.soak.gateway.traffic import CHAT, COMPLETIONS, MODEL, Failed, Seen, Traffic

SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "60"))
SEED: Final = int(os.environ.get("SOAK_SEED", "0"))
CLIENTS: Final = 16
RELOAD_EVERY_S: Final = 15
WARM_SHARE, WARM_LEAST_S = 0.25, 20.0
AFTERMATH_S: Final = 5.0
"""After its engine is well again a fault may still end a request: the gateway's idle timeout, and a health check."""
MAX_FILES, MAX_THREADS, MAX_TASKS = 2, 8, 2  # thread pools grow to their bound when first needed
MAX_GROWTH_BYTES: Final = (8 if SECONDS >= 480 else 24) << 20
"""Caches and the allocator need about 2,000 requests to be full, which only a long run's warm-up has."""


@pytest.mark.slow
@pytest.mark.timeout(0)
async def test_faults_cost_their_own_requests_and_nothing_leaks(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
        engines = [EngineProcess(name) for name in ("a", "b", "c")]
        gateway = GatewayProcess(engines, tmp_path, session)
        try:
            await asyncio.gather(*(e.start(session) for e in engines))
            await gateway.start()
            trouble = Trouble(engines, session, rng)
            traffic = Traffic(gateway.url, session, SEED)
            warm = max(WARM_LEAST_S, SECONDS * WARM_SHARE)
            await _phase(traffic, trouble, warm)
            before = await gateway.footprint()
            memory = await _phase(traffic, trouble, max(SECONDS - warm, 20.0), gateway)
            after = await gateway.footprint()
            metrics = await gateway.metrics()
            running = [await e.running(session) for e in engines]
            assert await gateway.stop() in (0, -signal.SIGTERM)  # uvicorn ends by the signal it was sent
        finally:
            gateway.kill()
            await asyncio.gather(*(e.end() for e in engines))
    workers = {i: str(e.get("worker")).split(",") for i, e in gateway.access_log().items()}
    touched = Counter(_cause(f, workers, trouble.faults) for f in traffic.seen.failed)
    _print(traffic.seen, trouble.faults, touched, memory, before, after, metrics)

    assert not gateway.failures()
    assert not traffic.seen.wrong, traffic.seen.wrong[:5]
    untouched = [f for f in traffic.seen.failed if _cause(f, workers, trouble.faults) is None]
    assert not untouched, "\n".join([*map(str, untouched[:5]), *gateway.said()[-30:]])
    assert total(metrics, "catalejo_upstream_retries_total") > 0, "the faults were felt"
    assert total(metrics, "catalejo_config_reloads_total", result="applied") > 0
    assert running == [0, 0, 0]
    assert after.files <= before.files + MAX_FILES
    assert after.threads <= before.threads + MAX_THREADS
    assert after.tasks <= before.tasks + MAX_TASKS
    assert after.resident_bytes <= before.resident_bytes + MAX_GROWTH_BYTES
    _same_counts(traffic.seen, metrics, gateway.ledger)


async def _phase(
    traffic: Traffic, trouble: Trouble, seconds: float, gateway: GatewayProcess | None = None
) -> list[tuple[float, int]]:
    """Traffic and faults; returns (seconds, resident bytes) of the gateway, once a second."""
    begin = time.monotonic()
    memory: list[tuple[float, int]] = []

    async def watch() -> None:
        while gateway is not None:
            memory.append((time.monotonic() - begin, gateway.resident_bytes))
            if len(memory) % RELOAD_EVERY_S == 0:
                gateway.reload()
            await asyncio.sleep(1)

    watcher = asyncio.create_task(watch())
    try:
        # Faults end first, so that the last requests are answered by engines that are well.
        await asyncio.gather(traffic.run(CLIENTS, begin + seconds), trouble.run(begin + max(seconds - 10, seconds / 2)))
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    return memory


def _cause(failed: Failed, workers: dict[str, list[str]], faults: list[Fault]) -> str | None:
    """The fault that may have ended the request: on its engine, at the same time."""
    for fault in reversed(faults):
        overlap = failed.begin <= fault.end + AFTERMATH_S and failed.end >= fault.begin
        if overlap and fault.engine in workers.get(failed.request_id, ()):
            return fault.kind
    return None


def _same_counts(seen: Seen, metrics: Samples, ledger: Path) -> None:
    """What clients that stayed saw is what was counted; of those that left, how many there were."""
    by_tenant, whole = totals(read(ledger, 0, 1e12), ("tenant",), {})
    ok_by_tenant, _ = totals(read(ledger, 0, 1e12), ("tenant", "outcome"), {})
    for route in (CHAT, COMPLETIONS):
        statuses = {s: n for (r, s), n in seen.statuses.items() if r == route}
        counted: Counter[int] = Counter()
        for name, labels, value in metrics:
            if name == "catalejo_http_requests_total" and labels["route"] == route:
                counted[int(labels["status"])] += int(value)
        left = seen.left[route]
        assert counted.total() == sum(statuses.values()) + left, (route, counted, statuses, left)
        for status in {*statuses, *counted}:
            exact = status not in (200, 499) and status < 500
            assert 0 <= counted[status] - statuses.get(status, 0) <= (0 if exact else left), (route, status)
    for tenant in ("acme", "zeta"):
        mine = {o: n for (t, o), n in seen.outcomes.items() if t == tenant}
        assert {o: n for o, n in by_tenant[tenant,].outcomes.items() if n} == mine, tenant
        for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"):
            assert ok_by_tenant[tenant, "ok"].sums[name] == seen.tokens[tenant, name], (tenant, name)
    assert by_tenant["leavers",].sums["requests"] == seen.left.total()
    assert set(by_tenant) == {("acme",), ("zeta",), ("leavers",)}
    for outcome, requests in whole.outcomes.items():
        assert total(metrics, "catalejo_generations_total", outcome=outcome) == requests, outcome
    for kind, name in (
        ("input", "input_tokens"),
        ("cached_input", "cached_tokens"),
        ("output", "output_tokens"),
        ("reasoning", "reasoning_tokens"),
    ):
        assert total(metrics, "catalejo_tokens_total", gen_ai_token_type=kind) == whole.sums[name], kind
    assert total(metrics, "catalejo_ledger_records_total", outcome="dropped") == 0


def _print(
    seen: Seen,
    faults: list[Fault],
    touched: Counter[str | None],
    memory: list[tuple[float, int]],
    before: Footprint,
    after: Footprint,
    metrics: Samples,
) -> None:
    seconds, resident = np.array([m[0] for m in memory]), np.array([m[1] for m in memory]) / 2**20
    slope = float(np.polyfit(seconds, resident, 1)[0]) * 3600
    print(f"\n{seen.requests} requests in {SECONDS:.0f} s from {CLIENTS} clients, model {MODEL}, seed {SEED}")
    print("kind".ljust(20), "requests")
    for kind, n in sorted(seen.kinds.items()):
        print(kind.ljust(20), n)
    print("outcome".ljust(20), "requests, as clients that stayed saw it")
    for outcome in ("ok", "refused", "failed"):
        print(outcome.ljust(20), sum(n for (_, o), n in seen.outcomes.items() if o == outcome))
    print("fault".ljust(20), "times  requests that failed by it")
    for kind, n in sorted(Counter(f.kind for f in faults).items()):
        print(kind.ljust(20), f"{n:5}  {touched[kind]}")
    retries = total(metrics, "catalejo_upstream_retries_total")
    print("sent again".ljust(20), f"{retries:.0f} engine requests; clients noticed nothing")
    print("at rest".ljust(20), "after the warm-up / at the end")
    print("files".ljust(20), before.files, "/", after.files)
    print("threads".ljust(20), before.threads, "/", after.threads)
    print("tasks".ljust(20), before.tasks, "/", after.tasks)
    print("resident, MiB".ljust(20), before.resident_bytes >> 20, "/", after.resident_bytes >> 20)
    tenths = [f"{part.mean():.0f}" for part in np.array_split(resident, 10) if len(part)]
    print("resident by tenth".ljust(20), " ".join(tenths), f"MiB; slope {slope:+.1f} MiB/h")

"""`catalejo bench gateway`: what one event, one small request, one idle stream and large requests cost.

Contestants run one after another in rounds, in turn, so that a slow moment hurts all alike: a raw relay (the floor),
this gateway with detokenizer and parsers, and the peers of gateway/bench/peers.py that are installed. Contestant on one
core, engine and load on the other. CPU is what the kernel charged the process (utime + stime). Compare only at equal
load: the cost per event falls as wake-ups batch."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from gateway.bench import stalls
from gateway.bench.load import Counter, chat_body, open_stream, unary
from gateway.bench.peers import GRPC, Contestant, Field, field_of
from gateway.bench.processes import free_port, running

ROUNDS: Final = 3
SMALL_REQUESTS: Final = 400
IDLE_STREAMS: Final = 400
FIRST_TOKENS: Final = 60
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def run(
    streams: int, rate: float, seconds: float, as_json: bool, smg: Path | None, litellm: Path | None, only: list[str]
) -> int:
    cores = sorted(os.sched_getaffinity(0))
    ours, theirs, sender = {cores[0]}, {cores[-1]}, {cores[len(cores) // 2 - 1]}
    given = field_of(smg, litellm, rate, only)
    if not given.contestants:
        raise SystemExit(f"catalejo bench: nobody of {', '.join(only)} is here; {_missing(given)}")
    os.sched_setaffinity(0, ours)
    for number in range(ROUNDS):
        for one in given.contestants:
            _say(as_json, f"round {number + 1} of {ROUNDS}: {one.name}")
            _round(one, given.engines[one.engine], ours, theirs, sender, streams, seconds, rate)
    report = {
        "streams": streams, "rate": rate, "seconds": seconds, "cores": len(cores),
        "load_average": os.getloadavg()[0], "results": {c.name: c.medians() for c in given.contestants},
        "does_our_work": [c.name for c in given.contestants if c.works], "missing": given.missing,
    }  # fmt: skip
    print(json.dumps(report, indent=2) if as_json else "\n".join(filter(None, [_table(report), _missing(given)])))
    return 0


def _round(
    one: Contestant,
    engine: list[str],
    ours: set[int],
    theirs: set[int],
    sender: set[int],
    streams: int,
    seconds: float,
    rate: float,
) -> None:
    """The engine is new for each: none inherits another's connections. Memory is measured in a process of its own, before
    any load has made it grow, and so that streams which a contestant never gives back burden nobody."""
    port, engine_port, spare = free_port(), free_port(), free_port()
    ports = {"port": port, "engine": engine_port, "spare": spare}
    up = None if one.engine == GRPC else f"http://127.0.0.1:{engine_port}/health"
    with running([p.format(**ports) for p in engine], ours, engine_port, up, {}):
        if up is not None:
            one.note(first_token_direct_p50_ms=asyncio.run(_first_token_ms(engine_port)))
        command = [part.format(**ports) for part in one.command]
        ready = f"http://127.0.0.1:{port}{one.ready}"
        with running(command, theirs, port, ready, one.environment) as pid:
            one.note(kib_per_idle_stream=asyncio.run(_idle_kib(port, pid)))
        with running(command, theirs, port, ready, one.environment) as pid:
            asyncio.run(_measure(one, port, pid, streams, seconds))
        if one.large:
            watched = {name: value.format(**ports) for name, value in one.watched.items()}
            with running(command, theirs, port, ready, one.environment | watched):
                asyncio.run(stalls.measure(one, port, spare if watched else None, rate, one.large, sender))


async def _measure(one: Contestant, port: int, pid: int, streams: int, seconds: float) -> None:
    await unary(port, 50, 1)  # warm
    latencies = await unary(port, SMALL_REQUESTS // 2, 1)
    before = _cpu_s(pid)
    await unary(port, SMALL_REQUESTS, 8)
    small_ms = (_cpu_s(pid) - before) / SMALL_REQUESTS * 1e3
    one.note(small_request_cpu_ms=small_ms, small_request_p50_ms=statistics.median(latencies) * 1e3)
    one.note(first_token_p50_ms=await _first_token_ms(port))

    counter = Counter()
    body = chat_body(100_000, stream=True)  # longer than we stay
    clients = [await open_stream(port, body, counter) for _ in range(streams)]
    for _ in range(300):
        await asyncio.sleep(0.1)
        if len(counter.first_s) == streams:
            break
    await asyncio.sleep(1.0)
    events, cpu, began = counter.events, _cpu_s(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    events, cpu, took = counter.events - events, _cpu_s(pid) - cpu, time.perf_counter() - began
    for client in clients:
        client.close()
    one.note(events_per_s=events / took)
    if events:
        one.note(cpu_us_per_event=cpu / events * 1e6)


async def _first_token_ms(port: int) -> float:
    """Streams of one token, one after another: what the contestant adds, since the engine answers at once."""
    counter = Counter()
    for _ in range(FIRST_TOKENS):
        await (await open_stream(port, chat_body(1, stream=True), counter)).done
    return statistics.median(counter.first_s) * 1e3


async def _idle_kib(port: int, pid: int) -> float:
    await unary(port, 50, 1)
    resident = _rss(pid)
    idle = [await open_stream(port, chat_body(2_000_000, stream=True), Counter()) for _ in range(IDLE_STREAMS)]
    grown, before = _rss(pid), 0
    for _ in range(40):
        before, grown = grown, await _rss_later(pid)
        if grown == before:
            break
    for client in idle:
        client.close()
    return (grown - resident) / IDLE_STREAMS / 1024


async def _rss_later(pid: int) -> int:
    await asyncio.sleep(0.5)
    return _rss(pid)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def _say(as_json: bool, text: str) -> None:
    if not as_json:
        print(text, file=sys.stderr)


def _table(report: dict[str, Any]) -> str:
    results: dict[str, dict[str, float]] = report["results"]
    rows = sorted({name for figures in results.values() for name in figures})
    lines = [f"{'':30}" + "".join(f"{name:>14}" for name in results)]
    lines += [f"{row:30}" + "".join(f"{figures.get(row, '-'):>14}" for figures in results.values()) for row in rows]
    load = f"{report['streams']} streams x {report['rate']:g} tokens/s, medians of {ROUNDS} rounds, "
    same = f"the same work (detokenizing, parsing): {', '.join(report['does_our_work'])}; the others pass chunks on"
    return "\n".join([*lines, "", load + f"load average {report['load_average']:.1f}", same])


def _missing(given: Field) -> str:
    return "\n".join(f"{name}: {why}" for name, why in given.missing.items())

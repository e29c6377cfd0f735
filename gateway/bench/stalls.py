"""How long large requests keep other streams waiting: the longest gap that clients of 20 streams see, and the longest stall
that the gateway's event loop saw itself (/debug/loop), while nothing else and while large requests arrive.

The sender yields its core to the load and the engine (sender.py), so that a gap is not its doing. The relay, which passes
the same bytes on and looks at nothing, says what the machine itself costs."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

import orjson

from gateway.bench.http import get
from gateway.bench.load import Counter, chat_body, open_stream
from gateway.bench.peers import Contestant

STREAMS: Final = 20
SECONDS: Final = 4.0
MEGABYTES: Final = 10.0
SETTLE_S: Final = 0.7


async def measure(
    one: Contestant, port: int, operations: int | None, rate: float, kinds: list[str], cores: set[int]
) -> None:
    """Notes the figures of the quiet time and of each kind of sender.py. `operations`: the gateway's second port; `cores`: for
    the sender."""
    await _during(one, port, operations, rate, "quiet", None)
    for kind in kinds:
        command = [sys.executable, "-m", "gateway.bench.sender", "--port", str(port), "--kind", kind]
        command += ["--megabytes", str(MEGABYTES), "--seconds", str(SECONDS)]
        pipe = asyncio.subprocess.PIPE
        sender = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        os.sched_setaffinity(sender.pid, cores)
        assert sender.stdin is not None and sender.stdout is not None
        await sender.stdout.readline()
        await _during(one, port, operations, rate, kind, sender.stdin)
        sent = int(await sender.stdout.read() or 0)
        if await sender.wait() or not sent:
            raise SystemExit(f"catalejo bench: no request of {kind} was answered")
        one.note(**{f"sent_{kind}": float(sent)})


async def _during(
    one: Contestant, port: int, operations: int | None, rate: float, name: str, go: asyncio.StreamWriter | None
) -> None:
    counter = Counter()
    body = chat_body(int(rate * 10 * SECONDS), stream=True)
    clients = [await open_stream(port, body, counter) for _ in range(STREAMS)]
    await asyncio.sleep(SETTLE_S)
    counter.longest_gap_s = 0.0
    events = counter.events
    if go is not None:
        go.write(b"go\n")
    if operations is None:
        await asyncio.sleep(SECONDS)
    else:
        lag = orjson.loads(await get(operations, f"/debug/loop?seconds={SECONDS:g}"))
        one.note(**{f"longest_stall_{name}_ms": lag["longest_ms"][0]})
    one.note(**{f"longest_gap_{name}_ms": counter.longest_gap_s * 1e3})
    if counter.events == events:
        raise SystemExit(f"catalejo bench: {one.name}: the streams stood still")
    for client in clients:
        client.close()

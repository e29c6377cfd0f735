"""The two clients that are always there: ours, and bare asyncio streams, which are what this machine allows at best."""

from __future__ import annotations

import asyncio
import statistics
import time

import numpy as np

from loadtest.bench.truth import PROMPT_TOKENS, RAMP_S, SECONDS, TOKENS, Seen
from loadtest.load import Load
from loadtest.payloads.text import Calibration
from loadtest.running import Options, Target, run
from loadtest.scenario import Scenario


def ours(url: str, streams: int) -> Seen:
    scenario = Scenario.model_validate(
        {"name": "bench", "description": "one turn", "new_tokens": PROMPT_TOKENS, "output_tokens": TOKENS}
    )
    load = Load(mode="closed", concurrency=streams, warmup_s=0.0, duration_s=SECONDS, ramp_s=RAMP_S)
    result = run(Options(Target(url, "m"), scenario, load, workers=1), calibration=Calibration())
    ttft, itl = result["latency_ms"]["ttft"], result["latency_ms"]["itl"]
    return Seen(ttft["count"], ttft["mean"], ttft["p99"], itl["mean"], bool(result["verdict"]["valid"]))


def bare(url: str, streams: int) -> Seen:
    """asyncio streams, one stamp per read, nothing else."""
    ttfts: list[float] = []
    itls: list[float] = []

    async def user(host: str, port: int, after: float, until: float) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        await asyncio.sleep(after)
        while time.monotonic() < until:
            sent = time.monotonic_ns()
            writer.write(head + body)
            stamps: list[int] = []
            tail = b""
            while not tail.endswith(b"0\r\n\r\n"):
                data = await reader.read(65536)
                tail = (tail + data)[-16:]
                if b'content"' in data:
                    stamps.append(time.monotonic_ns())
            ttfts.append((stamps[0] - sent) / 1e6)
            itls.append((stamps[-1] - stamps[0]) / 1e6 / (TOKENS - 1))
        writer.close()

    async def everybody() -> None:
        host, port = url.removeprefix("http://").split(":")
        until = time.monotonic() + SECONDS
        await asyncio.gather(*(user(host, int(port), RAMP_S * i / streams, until) for i in range(streams)))

    try:
        import uvloop
    except ImportError:
        asyncio.run(everybody())
    else:
        uvloop.run(everybody())
    return Seen(len(ttfts), statistics.fmean(ttfts), float(np.percentile(ttfts, 99)), statistics.fmean(itls))

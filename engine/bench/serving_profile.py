"""Microseconds of sparse attention per layer, inside a running server: SGLang's own profiler over a few steps.

Kernels are told apart by name: the choice of blocks and the attention to them, SGLang's or ours. Those that overlap count
once. Only GPU activity is recorded: recording the CPU as well has crashed a scheduler at 32 requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from engine.bench.serving_load import BenchError, Loads

STEPS = 8
ONE_S = 40.0
"""A profile that takes longer is given up."""
SPARSE = re.compile(
    r"_decode_score|_block_score|_topk_index|minimax_decode_topk|_gqa_share_sparse|_merge_topk_attn|_merge_attn_out"  # SGLang
    r"|^_(score|choose|attend|merge|union|count|scan|fill)_kernel|msa::|cluster_kernel"  # ours
)
SCORES = {"decode": re.compile(r"_decode_score|msa::Score"), "extend": re.compile(r"_block_score|^_score_kernel")}
"""The first kernel of a layer, by the kind of step: SGLang runs a decoding step even behind a request of one token."""


def busy_us(spans: Sequence[tuple[float, float]]) -> float:
    """Microseconds covered by (start, duration) spans."""
    total, end = 0.0, float("-inf")
    for start, duration in sorted(spans):
        total += max(0.0, start + duration - max(start, end))
        end = max(end, start + duration)
    return total


def summary(events: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Of one chrome trace: sparse attention's busy time in a layer of that kind of step, by kernel too; what took longest."""
    kernels = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    layers: list[list[dict[str, Any]]] = []
    for e in sorted((e for e in kernels if SPARSE.search(e["name"])), key=lambda e: e["ts"]):
        if "score" in e["name"].lower():
            layers.append([])
        if layers:
            layers[-1].append(e)
    mine = [layer for layer in layers if SCORES[kind].search(layer[0]["name"])]
    busy = busy_us([(e["ts"], e["dur"]) for e in kernels])
    made: dict[str, Any] = {"layers_seen": len(mine), "busy_us": busy, "top": _by_name(kernels, 1)[:24]}
    if mine:
        sparse = [e for layer in mine for e in layer]
        made["attention_us"] = busy_us([(e["ts"], e["dur"]) for e in sparse]) / len(mine)
        made["sparse"] = _by_name(sparse, len(mine))
    return made


def _by_name(events: Sequence[dict[str, Any]], layers: int) -> list[tuple[str, float, int]]:
    """(name, microseconds a layer, launches), longest first."""
    spent: Counter[str] = Counter()
    for e in events:
        spent[e["name"][:100]] += e["dur"]
    count = Counter(e["name"][:100] for e in events)
    return [(name, us / layers, count[name]) for name, us in spent.most_common()]


def read(folder: Path, kind: str) -> dict[str, Any] | None:
    """The trace in a folder, or None while it is not there whole."""
    for path in sorted(folder.glob("*.json*")):
        try:
            with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as trace:
                return summary(json.load(trace)["traceEvents"], kind)
        except (OSError, EOFError, ValueError, zlib.error):
            return None
    return None


async def profile(loads: Loads, activities: Sequence[str] = ("GPU",)) -> None:
    """Decoding at each concurrency, then extends; outcome.layers by load. Prompts are those of the first pass."""
    plan = loads.plan
    for users in plan.concurrency:
        delay = loads.outcome.figures[f"decode {users}"][0]["ttft_max_ms"] / 1e3 + 0.05
        work = partial(loads.client.many, loads.mixed[users][:users], plan.decode, users)
        await _one(loads, f"decode {users}", work, activities, delay)
    for new in plan.new:
        work = partial(loads.client.many, loads.prompts(STEPS + 2, new), 1, 1)
        await _one(loads, f"extend {new}", work, activities)


async def _one(
    loads: Loads, name: str, work: Callable[[], Awaitable[Any]], activities: Sequence[str], delay: float = 0.0
) -> None:
    """What goes wrong costs this profile only; a server that died shows at the next load."""
    folder = Path(tempfile.mkdtemp(prefix="catalejo-trace-"))
    session, url = loads.client.session, loads.client.url
    body = {"output_dir": str(folder), "num_steps": STEPS, "activities": list(activities), "with_stack": False}
    running = asyncio.ensure_future(work()) if delay else None
    try:
        async with asyncio.timeout(ONE_S):
            await asyncio.sleep(delay)
            async with session.post(
                f"{url}/start_profile", json=body, headers={"content-type": "application/json"}
            ) as response:
                if response.status != 200:
                    raise BenchError(f"/start_profile: HTTP {response.status}: {(await response.text())[:200]}")
            await (running or work())
            loads.outcome.layers[name] = await _trace(loads, folder, name.split()[0])
    except (BenchError, TimeoutError, aiohttp.ClientError, ExceptionGroup) as error:
        loads.outcome.layers[name] = {"error": repr(error)}
    finally:
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        shutil.rmtree(folder, ignore_errors=True)


async def _trace(loads: Loads, folder: Path, kind: str) -> dict[str, Any]:
    """SGLang ends a profile at a later step, so one more request may be needed."""
    attempt = 0
    while (found := read(folder, kind)) is None:
        attempt += 1
        if attempt % 8 == 4:
            await loads.client.one(loads.prompts(1, 16)[0], 4)
        await asyncio.sleep(0.25)
    return found

"""Two thousand requests of every kind through a real server: memory, files and bookkeeping end where they began."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from pathlib import Path

import pytest

from engine import wire
from tests.contract.client import request, text_ids
from tests.unit.engine.harness import Prompt
from tests.unit.engine.test_server import frame, serving

REQUESTS = 2000
CLIENTS = 16
WARM = 700
"""By then the prefix cache, the media store and the allocator have seen everything."""
MAX_GROWTH_BYTES = 24 << 20


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def one(engine, rng: random.Random) -> None:
    kind = rng.random()
    sampling = {"max_new_tokens": rng.randint(1, 6), "temperature": 1.0, "top_p": 0.9}
    if kind < 0.15:  # leaves at once
        async with engine.open(frame(sampling={"max_new_tokens": 5000, "ignore_eos": True})) as response:
            if rng.random() < 0.5:
                await response.content.readline()
            response.close()
    elif kind < 0.3:
        prompt = Prompt().text(rng.randint(1, 20), rng.randint(0, 9)).image(4, 4, rng.randint(0, 30)).text(5)
        call = frame(input_ids=prompt.ids, items=tuple(prompt.items), sampling=sampling)
        assert (await engine.send(call)).status == 200
    elif kind < 0.4:
        grammar = wire.Grammar("regex", f"[a-z]{{{rng.randint(1, 5)}}}")
        assert (await engine.send(frame(grammar=grammar, n=2))).status == 200
    elif kind < 0.45:
        assert (await engine.send(b"rubbish")).status == 400
    else:
        call = request(input_ids=text_ids(rng.randint(1, 150), rng.randint(0, 50)), sampling=sampling, logprobs=2)
        assert (await engine.generate(call)).status == 200


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_memory_is_flat_over_two_thousand_requests() -> None:
    async with serving(kv_pages=600, media_store_bytes=1 << 20, max_running=16) as engine:
        work = iter(range(REQUESTS))
        seen: list[tuple[int, int]] = []

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            for i in work:
                await one(engine, rng)
                if i >= WARM and i % 100 == 0:
                    seen.append((i, resident_bytes()))

        await asyncio.gather(*(client(i) for i in range(CLIENTS)))
        assert await engine.idle_within(5)
        core, service = engine.service.core, engine.service
        core.scheduler.check()
        assert core.cache.used == 0
        assert not core.rows
        assert service.idle
        assert service._open_choices == 0
        assert not service.store._pins
        growth = seen[-1][1] - seen[0][1]
        print("resident:", [(i, b >> 20) for i, b in seen])
        assert growth < MAX_GROWTH_BYTES

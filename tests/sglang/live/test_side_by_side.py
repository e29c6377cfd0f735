"""The same chat requests to our gateway and to SGLang's own OpenAI layer, on one running server with a model that
answers (the demo checkpoint), greedy. What differs must be in DIFFERENCES with its reason, and docs/differences.md
explains it; what is listed must differ, so that the table stays true."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest

from tests.sglang.live.cases import CASES
from tests.sglang.live.stack import gateway_in_front
from tests.sglang.live.talk import Record, ask, flat

DEMO = Path(__file__).parents[3] / "engine" / "checkpoints" / "demo" / "model"

DIFFERENCES: dict[str, dict[str, str]] = {}


AT_ONCE = 8
MAX_TOKENS = 40


async def everything(gateway: str) -> dict[str, tuple[Record, Record]]:
    """Every case's (ours, SGLang's), several at a time: a CPU decodes eight requests about as fast as one."""
    engine, token = os.environ["CATALEJO_CONTRACT_URL"], os.environ["CATALEJO_CONTRACT_TOKEN"]
    slots = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def both(case: Record) -> tuple[Record, Record]:
            body = {"model": "demo", "temperature": 0, "max_tokens": MAX_TOKENS, **case}
            if "max_completion_tokens" in case:
                del body["max_tokens"]
            async with slots:
                return await ask(session, gateway, None, body), await ask(session, engine, token, body)

        answers = await asyncio.gather(*(both(case) for case in CASES.values()))
    return dict(zip(CASES, answers, strict=True))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Record, Record]]:
    folder = tmp_path_factory.mktemp("gateway")
    with gateway_in_front(os.environ["CATALEJO_CONTRACT_URL"], DEMO, "demo", folder) as url:
        return asyncio.run(everything(url))


@pytest.mark.parametrize("name", CASES)
def test_the_same_answer(name: str, answers: dict[str, tuple[Record, Record]]) -> None:
    ours, theirs = map(flat, answers[name])
    differ = {field for field in ours.keys() | theirs.keys() if ours.get(field) != theirs.get(field)}
    listed = {field for field, names in DIFFERENCES.items() if name in names}
    shown = {field: (ours.get(field), theirs.get(field)) for field in sorted(differ ^ listed)}
    assert differ == listed, f"(ours, SGLang's) {shown}; they said {[a.get('said') for a in answers[name]]}"

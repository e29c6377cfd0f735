"""The same chat requests to our gateway and to SGLang's own OpenAI layer, on one running server with a model that
answers (the demo checkpoint), greedy. What differs must be in DIFFERENCES with its reason, and docs/differences.md
explains it; what is listed must differ, so that the table stays true."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.sglang.live.cases import CASES
from tests.sglang.live.stack import gateway_in_front
from tests.sglang.live.talk import ask, flat

DEMO = Path(__file__).parents[3] / "engine" / "checkpoints" / "demo" / "model"

DIFFERENCES: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway_in_front(os.environ["CATALEJO_CONTRACT_URL"], DEMO, "demo", tmp_path_factory.mktemp("gateway")) as url:
        yield url


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as made:
        yield made


@pytest.mark.parametrize("name", CASES)
async def test_the_same_answer(name: str, gateway: str, session: aiohttp.ClientSession) -> None:
    body: dict[str, Any] = {"model": "demo", "temperature": 0, **CASES[name]}
    ours = flat(await ask(session, gateway, None, body))
    theirs = flat(await ask(session, os.environ["CATALEJO_CONTRACT_URL"], os.environ["CATALEJO_CONTRACT_TOKEN"], body))
    differ = {field for field in ours.keys() | theirs.keys() if ours.get(field) != theirs.get(field)}
    listed = {field for field, names in DIFFERENCES.items() if name in names}
    shown = {field: (ours.get(field), theirs.get(field)) for field in sorted(differ ^ listed)}
    assert differ == listed, f"(ours, SGLang's) {shown}"

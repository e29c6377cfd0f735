"""Every test of this folder runs once per engine (targets.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.contract.client import EngineClient
from tests.contract.targets import Target, available, running


@pytest.fixture(scope="session", params=available())
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running(request.param, tmp_path_factory.mktemp(request.param) / "log") as one:
        yield one


@pytest.fixture
async def engine(target: Target) -> AsyncIterator[EngineClient]:
    timeout = aiohttp.ClientTimeout(total=280)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield EngineClient(target.url, target.token, session)

"""Tests against a running SGLang with the plugin (tests/sglang/run.sh starts it); skipped without one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.contract.client import EngineClient
from tests.contract.targets import Target, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("CATALEJO_CONTRACT_URL"):
        for item in items:
            if "tests/sglang/live" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="no SGLang server; make test-sglang starts one"))


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The embedded engine with the same checkpoint, in float32 as SGLang's."""
    with running("local", tmp_path_factory.mktemp("local") / "log") as one:
        yield one


@pytest.fixture
async def engine() -> AsyncIterator[EngineClient]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        url = os.environ["CATALEJO_CONTRACT_URL"]
        yield EngineClient(url, os.environ.get("CATALEJO_CONTRACT_TOKEN"), session)


@pytest.fixture
async def oracle(local: Target) -> AsyncIterator[EngineClient]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        yield EngineClient(local.url, local.token, session)

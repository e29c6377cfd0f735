"""One gateway and one mock engine for the whole session, emptied before each test: a test costs milliseconds.

A test that needs other settings starts its own `Stack(...)`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.api.harness import Stack


def one_loop(items: list[pytest.Item], folder: Path) -> None:
    """Tests of `folder` share the session's event loop, where the shared stack lives."""
    for item in items:
        if folder in item.path.parents and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_stack() -> AsyncIterator[Stack]:
    # The loop stands still between tests, so a clock that runs on would find the engine silent.
    routing = {"health_interval_s": 3600, "health_timeout_s": 600, "breaker_failures": 10_000}
    async with Stack(routing=routing) as s:
        yield s


@pytest_asyncio.fixture(loop_scope="session")
async def stack(shared_stack: Stack) -> Stack:
    shared_stack.engine.script([])
    shared_stack.engine.clear_log()
    shared_stack.engine.forget()
    return shared_stack

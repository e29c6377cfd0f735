from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.harness import Stack


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as s:
        yield s

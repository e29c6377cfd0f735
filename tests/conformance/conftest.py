from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.plugin import one_loop, shared_stack, stack

__all__ = ["shared_stack", "stack"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    one_loop(items, Path(__file__).parent)

"""One stack for all tests of this folder; each test writes its own script."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conformance.stack import Stack

if os.environ.get("CATALEJO_CONFORMANCE") != "1":  # the clients are not in the project's own environment
    collect_ignore_glob = ["test_*"]


@pytest.fixture(scope="session")
def started() -> Iterator[Stack]:
    with Stack() as stack:
        yield stack


@pytest.fixture
def stack(started: Stack) -> Stack:
    """The stack with an engine that echoes, and an empty log."""
    started.script()
    return started

"""Doing work for a client only as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.api.connection import Connection
from gateway.errors import ApiError

T = TypeVar("T")


async def while_connected(connection: Connection, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`; cancels it and raises ApiError("client_closed_request") when the client leaves first.

    The request's body must have been read. The work runs in the caller's own task, as in `asyncio.timeout`: a second one
    would cost a small request more than most of its steps."""
    if connection.gone:
        work.close()
        raise _left()
    caller = asyncio.current_task()
    assert caller is not None
    cancelled_before = caller.cancelling()
    connection.watch(caller.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if connection.gone and caller.uncancel() <= cancelled_before:
            raise _left() from None
        raise
    finally:
        connection.watch(None)


def _left() -> ApiError:
    return ApiError("client_closed_request", "the client closed the connection")

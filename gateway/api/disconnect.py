"""Doing work for a client only as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from gateway.errors import ApiError

T = TypeVar("T")


async def disconnected(receive: Receive) -> None:
    """Comes back when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`; cancels it and raises ApiError("client_closed_request") when the client leaves first.

    The body must have been read: from then on `receive` has only the disconnect to tell. The work runs in the caller's
    own task and one more watches, as in `asyncio.timeout`: a second task for the work would cost as much again."""
    caller = asyncio.current_task()
    assert caller is not None
    cancelled_before = caller.cancelling()
    gone = False

    async def watch() -> None:
        nonlocal gone
        await disconnected(receive)
        gone = True
        caller.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if gone and caller.uncancel() <= cancelled_before:
            raise ApiError("client_closed_request", "the client closed the connection") from None
        raise
    finally:
        watcher.cancel()

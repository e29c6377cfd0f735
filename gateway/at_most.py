"""A deadline whose timer is only set where there is something to wait for."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def at_most(until: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Raises TimeoutError at the loop time `until`, and what `work` raises.

    Work that never waits costs no timer, which is dearer than most of what a request's steps do."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout_at(until):
        return await _rest(work, awaited)


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """The coroutine that has begun, from where it waits for `awaited`."""
    while True:
        failure: BaseException | None = None
        sent = None
        try:
            sent = yield awaited
        except BaseException as e:
            failure = e
        try:
            awaited = work.send(sent) if failure is None else work.throw(failure)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

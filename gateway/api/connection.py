"""What the server offers beside ASGI's `send` and `receive`, which cost a message, coroutines or a task each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.types import Scope


class Connection(Protocol):
    """Of gateway/server/connection.py."""

    gone: bool
    """The application was told that the client has left, though the transport may still be open."""

    nothing: bytes
    """To be set to what means nothing to the client: the server asks with it, between two pieces, whether it is there."""

    def write(self, data: bytes) -> bool:
        """Sends a piece of a body without a length, between http.response.start and the last http.response.body, or drops it
        when the client is gone. False: the client is slower than we are."""

    async def drain(self) -> None:
        """Comes back when it has caught up, or is gone."""

    def stalled(self, seconds: float) -> bool:
        """Of one that is waited for, `seconds` after `drain` began or after this was asked last: whether it took next to
        nothing meanwhile."""

    def abort(self) -> None:
        """Drops the client and what it has not taken; it is gone then."""

    def watch(self, told: Callable[[], object] | None) -> None:
        """Calls `told`, once, when the client leaves before its answer is complete; None ends that. For when the request's body
        has been read."""


def connection_of(scope: Scope) -> Connection:
    connection: Connection = scope["extensions"]["catalejo.connection"]
    return connection

"""Places that the supervisor hands out, as a gateway process sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from gateway.admission.gate import GateFull

WHOLE: Final = ""
"""The name of the places of the whole gateway; others are called after their model."""

FULL: Final = "full"
"""The supervisor's word that the places of a model are taken, or that one is free again."""


class Supervisor(Protocol):
    """What is asked of the connection to it (client.py)."""

    def ask(self, name: str, *values: Any) -> tuple[int, asyncio.Future[list[Any]]]: ...
    def forget(self, number: int) -> None: ...
    def send(self, *message: Any) -> None: ...
    def is_full(self, name: str) -> bool: ...


class HubPlaces:
    """Places (gateway/admission/places.py) called `name`."""

    def __init__(self, supervisor: Supervisor, name: str) -> None:
        self._supervisor = supervisor
        self._name = name
        self._inside = 0
        self._waiting = 0

    @property
    def in_flight(self) -> int:
        return self._inside

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def full(self) -> bool:
        """By the supervisor's last word."""
        return self._supervisor.is_full(self._name)

    async def enter(
        self,
        tenant: str,
        *,
        priority: int = 0,
        limit: int | None = None,
        max_queue: int | None = None,
        on_wait: Callable[[int], None] = lambda waiting: None,
    ) -> Callable[[], None]:
        number, answer = self._supervisor.ask("enter", self._name, tenant, priority, limit, max_queue)
        self._waiting += 1
        on_wait(self._waiting)
        try:
            whose, waiting = await answer
        except BaseException:
            self._supervisor.send("leave", number)  # it may be held by now
            raise
        finally:
            self._waiting -= 1
            self._supervisor.forget(number)
        if whose is not None:
            raise GateFull(whose, waiting)
        self._inside += 1
        return partial(self._leave, number)

    def try_enter(self, tenant: str, limit: int | None = None) -> None:
        """The places are the supervisor's: it must be asked."""
        return

    def _leave(self, number: int) -> None:
        self._inside -= 1
        self._supervisor.send("leave", number)

    def resize(self, places: int, max_queue: int) -> None:
        self._supervisor.send("resize", self._name, places, max_queue)

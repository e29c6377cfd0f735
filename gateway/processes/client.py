"""A gateway process's side of the hub (hub.py): its rates and places, and what processes tell each other."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gateway.admission.gate import GateFull
from gateway.admission.limits import Kind, Reading
from gateway.errors import ApiError
from gateway.processes.frames import Frames, Message, pack

log = logging.getLogger("catalejo.processes")


class HubClient:
    """Rates and Places (gateway/admission). Without a supervisor this process is about to be ended: what needs one is then
    refused with `shutting_down`."""

    def __init__(self, path: Path, number: int) -> None:
        """`number`: of this process among those of its command, from 0; a process that replaces another takes its number."""
        self.number = number
        self._path = path
        self._frames = Frames(self._heard, self._lost)
        self._questions = itertools.count(1)
        self._asked: dict[int, asyncio.Future[list[Any]]] = {}
        self._listeners: dict[str, Callable[[Any], None]] = {}
        self._inside = 0
        self._waiting = 0
        self._closing = False
        self._orphaned = False

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: self._frames, str(self._path))

    def close(self) -> None:
        self._closing = True
        self._frames.close()
        if self._orphaned:  # nobody else is left to remove what the supervisor kept, settings with secrets among it
            shutil.rmtree(self._path.parent, ignore_errors=True)

    def serving(self) -> None:
        """This process is about to accept connections."""
        self._send("serving", self.number)

    # ------------------------------------------------------------------------------------------- rates
    async def take(self, tenant: str, kind: Kind, per_minute: int, units: float) -> Reading:
        _, answer = self._ask("take", tenant, kind, per_minute, units)
        try:
            return Reading(*await asyncio.shield(answer))
        except asyncio.CancelledError:
            answer.add_done_callback(lambda a: self._give_back(a, tenant, kind, per_minute, units))
            raise

    def _give_back(
        self, answer: asyncio.Future[list[Any]], tenant: str, kind: Kind, per_minute: int, units: float
    ) -> None:
        """Whoever asked has left: what was taken for him is not used."""
        if answer.exception() is None and Reading(*answer.result()).wait_s == 0:
            self.correct(tenant, kind, per_minute, -units)

    def correct(self, tenant: str, kind: Kind, per_minute: int, units: float) -> None:
        self._send("correct", tenant, kind, per_minute, units)

    # ------------------------------------------------------------------------------------------- places
    @property
    def in_flight(self) -> int:
        return self._inside

    @property
    def waiting(self) -> int:
        return self._waiting

    async def enter(
        self,
        tenant: str,
        *,
        priority: int = 0,
        limit: int | None = None,
        max_queue: int | None = None,
        on_wait: Callable[[int], None] = lambda waiting: None,
    ) -> Callable[[], None]:
        number, answer = self._ask("enter", tenant, priority, limit, max_queue)
        self._waiting += 1
        on_wait(self._waiting)
        try:
            whose, waiting = await answer
        except BaseException:
            self._send("leave", number)  # it may be held by now
            raise
        finally:
            self._waiting -= 1
            self._asked.pop(number, None)
        if whose is not None:
            raise GateFull(whose, waiting)
        self._inside += 1
        return partial(self._leave, number)

    def try_enter(self, tenant: str, limit: int | None = None) -> None:
        """The places are the supervisor's: it must be asked."""
        return

    def _leave(self, number: int) -> None:
        self._inside -= 1
        self._send("leave", number)

    def resize(self, places: int, max_queue: int) -> None:
        self._send("resize", places, max_queue)

    # ------------------------------------------------------------------------------------------- the others
    def tell(self, topic: str, payload: Any, *, keep: str | None = None) -> None:
        """To every other process of this command, in order. Those that are being restarted miss it, unless it is the last
        word on `keep`."""
        self._send("tell", topic, payload, keep)

    def on(self, topic: str, listener: Callable[[Any], None]) -> None:
        self._listeners[topic] = listener

    # ------------------------------------------------------------------------------------------- messages
    def _ask(self, name: str, *values: Any) -> tuple[int, asyncio.Future[list[Any]]]:
        if not self._frames.open:
            raise _gone()
        number = next(self._questions)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send(name, number, *values)
        return number, answer

    def _send(self, *message: Any) -> None:
        self._frames.send(pack(list(message)))

    def _heard(self, message: Message) -> None:
        if message[0] == "ping":
            self._send("pong")
            return
        if message[0] == "told":
            _, topic, payload = message
            if listener := self._listeners.get(topic):
                listener(payload)
            return
        answer = self._asked.pop(message[0], None)
        if answer is not None and not answer.done():
            answer.set_result(message[1:])

    def _lost(self) -> None:
        if not self._closing:
            self._orphaned = True
            log.error("the supervisor is gone; stopping")
            signal.raise_signal(signal.SIGTERM)
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(_gone())


def _gone() -> ApiError:
    return ApiError("shutting_down", "the server is being stopped; try again")

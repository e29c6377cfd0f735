"""A gateway process's side of the hub (hub.py): its rates and places, and what processes tell each other."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.admission.limits import Kind, Reading
from gateway.errors import ApiError
from gateway.processes.frames import Frames, Message, pack
from gateway.processes.places import FULL, WHOLE, HubPlaces

log = logging.getLogger("catalejo.processes")


class HubClient:
    """Rates (gateway/admission), and where Places come from. Without a supervisor this process is about to be ended: what needs
    one is then refused with `shutting_down`."""

    def __init__(self, path: Path, number: int) -> None:
        """`number`: of this process among those of its command, from 0; a process that replaces another takes its number."""
        self.number = number
        self._path = path
        self._frames = Frames(self._heard, self._lost)
        self._questions = itertools.count(1)
        self._asked: dict[int, asyncio.Future[list[Any]]] = {}
        self._listeners: dict[str, Callable[[Any], None]] = {}
        self._full: dict[str, bool] = {}
        self.places = HubPlaces(self, WHOLE)
        self._closing = False
        self._orphaned = False
        self.on(FULL, self._heard_full)

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: self._frames, str(self._path))

    def close(self) -> None:
        self._closing = True
        self._frames.close()
        if self._orphaned:  # nobody else is left to remove what the supervisor kept, settings with secrets among it
            shutil.rmtree(self._path.parent, ignore_errors=True)

    def serving(self) -> None:
        """This process is about to accept connections."""
        self.send("serving", self.number)

    # ------------------------------------------------------------------------------------------- rates
    async def take(self, tenant: str, kind: Kind, per_minute: int, units: float) -> Reading:
        _, answer = self.ask("take", tenant, kind, per_minute, units)
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
        self.send("correct", tenant, kind, per_minute, units)

    # ------------------------------------------------------------------------------------------- places
    def places_of(self, model: str, places: int, max_queue: int) -> HubPlaces:
        """Of one model, of all processes together."""
        made = HubPlaces(self, model)
        made.resize(places, max_queue)
        return made

    def is_full(self, name: str) -> bool:
        return self._full.get(name, False)

    def _heard_full(self, told: list[Any]) -> None:
        name, full = told
        self._full[name] = full

    # ------------------------------------------------------------------------------------------- the others
    def tell(self, topic: str, payload: Any, *, keep: str | None = None) -> None:
        """To every other process of this command, in order. Those that are being restarted miss it, unless it is the last
        word on `keep`."""
        self.send("tell", topic, payload, keep)

    def on(self, topic: str, listener: Callable[[Any], None]) -> None:
        self._listeners[topic] = listener

    # ------------------------------------------------------------------------------------------- messages
    def ask(self, name: str, *values: Any) -> tuple[int, asyncio.Future[list[Any]]]:
        if not self._frames.open:
            raise _gone()
        number = next(self._questions)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(name, number, *values)
        return number, answer

    def forget(self, number: int) -> None:
        """Nobody waits for that answer any more."""
        self._asked.pop(number, None)

    def send(self, *message: Any) -> None:
        self._frames.send(pack(list(message)))

    def _heard(self, message: Message) -> None:
        if message[0] == "ping":
            self.send("pong")
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

"""What the processes of one `--workers N` command share, in their supervisor: the places of the gateway, and of each model
with a limit, with the queues before them; the buckets of every tenant; and what each tells the others (routing decisions,
orders of an administrator).

It is the same gate and the same buckets that a single process has, so the rules are the same. A process that dies loses its
connection, and with that its places and its waiting requests.

Messages of a process: take, correct, enter, leave, resize, tell, serving, pong. To it: answers [id, ...], others' words
["told", ...], and ["ping"], by which one that hangs is found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.admission.gate import Gate, GateFull
from gateway.admission.limits import LocalRates
from gateway.processes.frames import Frames, Message, pack
from gateway.processes.places import FULL, WHOLE

log = logging.getLogger("catalejo.processes")
UNSENT_BYTES: Final = 8 << 20
"""A process that does not listen misses what others tell; answers to its own questions are never dropped."""

PING: Final = pack(["ping"])


class Hub:
    def __init__(self, max_in_flight: int, max_queue: int, on_serving: Callable[[int], None]) -> None:
        """`on_serving`: called with a process's number when it is about to serve."""
        self.rates = LocalRates()
        self.gates = {WHOLE: Gate(max_in_flight, max_queue)}
        self._full: set[str] = set()
        self.on_serving = on_serving
        self.members: set[Member] = set()
        self.kept: dict[tuple[str, str], bytes] = {}
        """What a process that is started later has to know: (topic, about what) -> the last word on it."""
        self._server: asyncio.Server | None = None

    async def start(self, path: Path) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(self._connect, str(path))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for member in list(self.members):
            member.frames.close()

    def ping(self, seconds: float) -> None:
        """To be called every so many `seconds`."""
        for member in self.members:
            member.silent_s += seconds
            member.frames.send(PING)

    def resize(self, name: str, places: int, max_queue: int) -> None:
        """A model's places are known from when the first process tells their number."""
        if name in self.gates:
            self.gates[name].resize(places, max_queue)
        else:
            self.gates[name] = Gate(places, max_queue)
        self.look(name)

    def look(self, name: str) -> None:
        """After each change: tells whether a model is full, when that has changed."""
        if name == WHOLE or self.gates[name].full == (name in self._full):
            return
        self._full ^= {name}
        self.tell(FULL, [name, name in self._full], name)

    def tell(self, topic: str, payload: Any, keep: str | None, *, but: Member | None = None) -> None:
        told = pack(["told", topic, payload])
        if keep is not None:
            self.kept[topic, keep] = told
        for member in self.members:
            if member is not but and member.frames.unsent < UNSENT_BYTES:
                member.frames.send(told)

    def silent_s(self, number: int) -> float:
        """How long the process of that number has not answered, by pings: this process's own pauses do not count."""
        return max((m.silent_s for m in self.members if m.number == number), default=0.0)

    def _connect(self) -> Frames:
        member = Member(self)
        self.members.add(member)
        return member.frames


class Member:
    """One process's connection."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.number: int | None = None
        """Once it serves."""
        self.silent_s = 0.0
        self.frames = Frames(self._heard, self._lost)
        self._entering: dict[int, asyncio.Task[None]] = {}
        self._inside: dict[int, Callable[[], None]] = {}
        self._handlers: dict[str, Callable[..., None]] = {
            "take": self._take,
            "correct": hub.rates.correct,
            "enter": self._enter,
            "leave": self._leave,
            "resize": hub.resize,
            "tell": lambda topic, payload, keep: hub.tell(topic, payload, keep, but=self),
            "serving": self._serving,
            "pong": lambda: None,
        }

    def _heard(self, message: Message) -> None:
        self.silent_s = 0.0
        self._handlers[message[0]](*message[1:])

    def _lost(self) -> None:
        self._hub.members.discard(self)
        for number in [*self._entering, *self._inside]:
            self._leave(number)
        if self.number is not None:
            self._hub.tell("gone", self.number, None)

    def _answer(self, *message: Any) -> None:
        self.frames.send(pack(list(message)))

    def _take(self, number: int, tenant: str, kind: Any, per_minute: int, units: float) -> None:
        self._answer(number, *self._hub.rates.take_now(tenant, kind, per_minute, units))

    def _enter(self, number: int, *wanted: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._wait(number, *wanted))
        self._entering[number] = task
        task.add_done_callback(lambda _: self._entering.pop(number, None))

    async def _wait(
        self, number: int, name: str, tenant: str, priority: int, limit: int | None, max_queue: int | None
    ) -> None:
        def look(waiting: int = 0) -> None:
            self._hub.look(name)

        try:
            leave = await self._hub.gates[name].enter(
                tenant, priority=priority, limit=limit, max_queue=max_queue, on_wait=look
            )
        except GateFull as full:
            self._answer(number, full.whose, full.waiting)
        else:
            self._inside[number] = partial(self._left, leave, name)
            self._answer(number, None, 0)
        finally:
            look()

    def _left(self, leave: Callable[[], None], name: str) -> None:
        leave()
        self._hub.look(name)

    def _leave(self, number: int) -> None:
        """Whoever is inside goes, whoever waits stops waiting."""
        if task := self._entering.pop(number, None):
            task.cancel()
        if leave := self._inside.pop(number, None):
            leave()

    def _serving(self, number: int) -> None:
        self.number = number
        for told in self._hub.kept.values():
            self.frames.send(told)
        self._hub.on_serving(number)

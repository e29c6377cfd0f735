"""The engine's own thread: takes commands, steps while there is work, hands every step's replies to `deliver`.

Commands (submit, abort) come from any thread and take effect between two steps, so within one step's time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping

from engine.local.core import Core, Output
from engine.local.sequence import Request

log = logging.getLogger("catalejo.engine")
Command = Callable[[], list[Output]]


class Runner:
    def __init__(
        self,
        core: Core,
        deliver: Callable[[list[Output]], None],
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`deliver` and `after_step` are called in the engine's thread."""
        self.core = core
        self._deliver = deliver
        self._after_step = after_step
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended; what still ran is dropped."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, request: Request, rows: Mapping[str, bytes]) -> None:
        def add() -> list[Output]:
            self.core.add(request, rows)
            return []

        self._command(add)

    def abort(self, request: Request) -> None:
        """The request's stream ends with `abort` for each open choice. Nothing happens if it has ended already."""
        self._command(lambda: [(request, self.core.abort(request))] if request.open else [])

    def fail(self, request: Request, code: str, message: str, *, retryable: bool) -> None:
        self._command(
            lambda: [(request, self.core.fail(request, code, message, retryable=retryable))] if request.open else []
        )

    def clear_cache(self) -> None:
        def clear() -> list[Output]:
            self.core.cache.clear()
            return []

        self._command(clear)

    def _command(self, command: Command) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._commands or self._stopping or self.core.busy):
                    self._wake.wait()
                if self._stopping:
                    return
                commands = list(self._commands)
                self._commands.clear()
            outputs: list[Output] = []
            for command in commands:
                outputs += command()
            if self.core.busy:
                outputs += self._step()
            if outputs:
                self._deliver(outputs)

    def _step(self) -> list[Output]:
        try:
            outputs = self.core.step()
        except Exception as error:
            # What failed may be any of those in the step; all of them end, the engine goes on.
            log.exception("a step failed")
            requests = dict.fromkeys(s.request for s in self.core.scheduler.running)
            message = f"{type(error).__name__} in the engine"
            return [(r, self.core.fail(r, "engine_error", message, retryable=True)) for r in requests]
        self._after_step()
        return outputs

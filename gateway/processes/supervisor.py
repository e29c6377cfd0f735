"""`catalejo gateway --workers N`: one supervisor, N gateway processes on one port.

The supervisor serves no request. It keeps the port, what the processes share (hub.py), the folder of their metrics and
uploads, and the processes themselves: one that dies is started again, with a growing pause if it dies before it serves; one
that hangs for `worker_timeout_s` is killed first.
SIGTERM or SIGINT: all drain, bounded by `shutdown_grace_s`; a second SIGINT ends them at once. SIGHUP is passed on. When the
supervisor itself dies, the kernel ends its processes. A first start that fails ends the command."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec
import uvloop
from prometheus_client.multiprocess import mark_process_dead

from gateway.commands.serve import log_start
from gateway.config import ConfigError, Settings, load, revealed
from gateway.metrics import FILES
from gateway.own_folders import OwnFolder
from gateway.processes.children import end_with_parent
from gateway.processes.hub import Hub
from gateway.processes.sockets import ListenError, close, port_of, reserve, tls_context
from gateway.processes.worker import Order
from gateway.reload import merged, mistakes_of
from gateway.upstream.tls import BadTls, client_context

log = logging.getLogger("catalejo.processes")
TICK_S: Final = 0.1
PAUSE_S: Final = (0.5, 30.0)
"""Before a process that died without having served is started again: doubling from the first to the second."""
SOCKET_PATH_BYTES: Final = 107
STOP_MARGIN_S: Final = 15.0
"""Beyond `shutdown_grace_s`, for closing what the gateway holds."""


@dataclass
class _Child:
    number: int
    process: subprocess.Popen[bytes] | None = None
    serving: bool = False
    pause_s: float = PAUSE_S[0]
    start_at: float = 0.0
    reloads: int = 0
    """How many SIGHUPs there had been when it was started."""


class Supervisor:
    def __init__(self, settings: Settings, config: Path | None, overrides: dict[str, Any]) -> None:
        self._settings = settings
        self._config = config
        self._overrides = overrides
        self._children = [_Child(n) for n in range(settings.workers)]
        self._hub = Hub(settings.admission.max_in_flight, settings.admission.max_queue, self._serves)
        self._asked_to_stop = False
        self._at_once = False
        self._reload_asked = asyncio.Event()
        self._reloads = 0
        self._all_served = False

    def run(self) -> int:
        """Returns the command's exit status. Raises ListenError."""
        tls_context(self._settings.tls)  # a wrong certificate is told here, once
        operations = self._settings.operations
        with ExitStack() as held:
            main = reserve(self._settings.host, self._settings.port)
            held.callback(close, main)
            second = [] if operations.port is None else reserve(operations.host, operations.port)
            held.callback(close, second)
            self._port = port_of(main)
            self._operations_port = port_of(second) if second else None
            try:
                own = OwnFolder("")
                held.callback(own.close)
                self._furnish(own.path)
            except OSError as e:
                where, why = tempfile.gettempdir(), e.strerror or e
                raise ListenError(f"{where} cannot hold what the processes share ({why}); set TMPDIR") from None
            log_start(self._settings, self._port, self._operations_port)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(self._run())
        raise AssertionError("unreachable")

    def _furnish(self, folder: Path) -> None:
        """Raises ListenError, OSError."""
        self._folder = folder
        if len(os.fsencode(folder / "hub.sock")) > SOCKET_PATH_BYTES:
            raise ListenError(f"{folder} is too long a path for a Unix socket; set TMPDIR to a shorter one")
        for name in ("metrics", "files"):
            (folder / name).mkdir(mode=0o700)
        self._write_settings(self._settings)

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop_asked, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_asked.set)
        await self._hub.start(self._folder / "hub.sock")
        try:
            return await self._watch()
        finally:
            await self._stop()
            await self._hub.close()

    def _stop_asked(self, number: signal.Signals) -> None:
        self._at_once = self._asked_to_stop and number == signal.SIGINT
        self._asked_to_stop = True

    async def _reload(self) -> None:
        """The processes judge the new configuration themselves and say what is wrong with it; here it only matters what a
        process gets that is started later: the same. What cannot be read or kept here for another reason (a full disk) is
        not passed on, so that all go on with what they have."""
        try:
            try:
                new = await asyncio.to_thread(load, self._config, **self._overrides)
            except ConfigError:
                new = self._settings
            now = merged(self._settings, new)
            if not mistakes_of(self._settings, now) and await asyncio.to_thread(_tls_usable, self._settings, now):
                await asyncio.to_thread(self._write_settings, now)
                self._settings = now
        except Exception as e:
            reason = " ".join(str(e).split())
            log.error("the configuration is not reloaded by any process: %s: %s", type(e).__name__, reason)
            return
        self._reloads += 1
        for child in self._children:
            # One that is starting has read the old settings and cannot hear yet: it is told when it serves.
            if child.serving:
                self._send(child, signal.SIGHUP)

    def _write_settings(self, settings: Settings) -> None:
        """For processes that start: secrets are in it, so it lives in a folder of our own. Whole or not at all."""
        new = self._folder / "settings.new"
        new.touch(mode=0o600)
        new.write_bytes(msgspec.json.encode(revealed(settings)))
        new.replace(self._folder / "settings.yaml")

    def _serves(self, number: int) -> None:
        child = self._children[number]
        child.serving, child.pause_s = True, PAUSE_S[0]
        if child.reloads != self._reloads:
            self._send(child, signal.SIGHUP)
        if not self._all_served and all(c.serving for c in self._children):
            self._all_served = True
            log.info("%d gateway processes serve", len(self._children))

    async def _watch(self) -> int:
        while not self._asked_to_stop:
            if self._reload_asked.is_set():
                self._reload_asked.clear()
                await self._reload()
            for child in self._children:
                if child.process is None:
                    if monotonic() >= child.start_at:
                        self._start(child)
                elif (status := child.process.poll()) is not None:
                    self._buried(child, status)
                    if not self._all_served and not child.serving:
                        log.error("gateway process %d did not start; stopping", child.number)
                        return status if status > 0 else 1
                    child.serving = False
                elif child.serving and self._hub.silent_s(child.number) > self._settings.worker_timeout_s:
                    log.error("gateway process %d has not answered for so long that it is killed", child.number)
                    self._send(child, signal.SIGKILL)
                    child.process.wait()
            self._hub.ping(TICK_S)
            await asyncio.sleep(TICK_S)
        return 0

    def _start(self, child: _Child) -> None:
        files = self._settings.media.files
        order = Order(
            number=child.number,
            settings=str(self._folder / "settings.yaml"),
            config=str(self._config) if self._config else None,
            overrides=self._overrides,
            hub=str(self._folder / "hub.sock"),
            port=self._port,
            operations_port=self._operations_port,
            files=str(self._folder / "files") if files.enabled and files.location == "local" else None,
        )
        child.reloads = self._reloads
        child.process = subprocess.Popen(
            [sys.executable, "-m", "gateway.processes.worker", msgspec.json.encode(order).decode()],
            env={**os.environ, FILES: str(self._folder / "metrics")},
            # Own session: Ctrl-C reaches the supervisor alone, which lets all drain.
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def _buried(self, child: _Child, status: int) -> None:
        assert child.process is not None
        mark_process_dead(child.process.pid, str(self._folder / "metrics"))  # type: ignore[no-untyped-call]
        child.process = None
        pause = 0.0 if child.serving else child.pause_s
        if not child.serving:
            child.pause_s = min(child.pause_s * 2, PAUSE_S[1])
        child.start_at = monotonic() + pause
        if not self._asked_to_stop:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            log.error("gateway process %d ended %s; starting it again in %g s", child.number, how, pause)

    async def _stop(self) -> None:
        running = [c for c in self._children if c.process is not None]
        for child in running:
            self._send(child, signal.SIGTERM)
        deadline = monotonic() + self._settings.shutdown_grace_s + STOP_MARGIN_S
        while running := [c for c in running if c.process is not None and c.process.poll() is None]:
            if self._at_once or monotonic() > deadline:
                log.error("%d gateway processes did not end in time and are killed", len(running))
                for child in running:
                    self._send(child, signal.SIGKILL)
            await asyncio.sleep(TICK_S)

    def _send(self, child: _Child, number: signal.Signals) -> None:
        if child.process is not None and child.process.poll() is None:
            child.process.send_signal(number)


def _tls_usable(old: Settings, new: Settings) -> bool:
    """Whether the certificate's files, and those of engines that are new, can be used: a process refuses the whole reload
    otherwise."""
    known = [e for m in old.served for e in m.engines]
    try:
        tls_context(old.tls)
        for endpoint in (e for m in new.served for e in m.engines if e not in known):
            if endpoint.url.startswith("https:"):
                client_context(endpoint.tls or new.upstream.tls)
    except (BadTls, ListenError):
        return False
    return True

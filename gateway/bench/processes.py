"""A server under measurement: started on its own cores, waited for, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

START_S: Final = 300.0
"""Some peers compile at their start, and some engines load for minutes."""


@contextmanager
def running(
    command: list[str], cores: set[int], port: int, ready: str | None, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Gives the process's id. Ready: the URL answers 200, or without one, the port is open. Raises SystemExit when it does
    not start."""
    env = {**os.environ, "CATALEJO_OBSERVABILITY__ACCESS_LOG": "false", **(environment or {})}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(process.pid, cores)
        deadline = time.monotonic() + START_S
        while not _is_up(port, ready):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"catalejo bench: did not start: {' '.join(command)}")
            time.sleep(0.1)
        for task in Path(f"/proc/{process.pid}/task").iterdir():  # threads that began before the pinning
            os.sched_setaffinity(int(task.name), cores)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _is_up(port: int, ready: str | None) -> bool:
    try:
        if ready is None:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        else:
            urllib.request.urlopen(ready, timeout=1).close()  # noqa: S310
    except (OSError, urllib.error.URLError):
        return False
    return True

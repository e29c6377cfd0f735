"""One server of the benchmark: started, waited for, ended; its log is what explains a failure."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.bench.serving_load import BenchError
from engine.sglang.msa import MODE_VARIABLE

SAY_EVERY_S = 30.0
TAIL_LINES = 40
GONE_S = 15.0
COREDUMP_WAIT = "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS"
"""SGLang waits a minute for dumps that nobody asked for before it ends after a crash."""


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The end of a log; lines that repeat a progress bar are cut short."""
    kept = [line[-400:] for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(kept[-lines:])


@contextmanager
def server(
    line: list[str], mode: str, log: Path, url: str, wait_s: float, say: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """Raises BenchError with the end of the log when it does not come up. `say`: told what the log says, now and then."""
    environment = {COREDUMP_WAIT: "0", **os.environ, MODE_VARIABLE: mode}
    with log.open("wb") as out:
        process = subprocess.Popen(line, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait(process, mode, log, url, wait_s, say)
        yield
    finally:
        _end(process)


def _wait(
    process: subprocess.Popen[bytes], mode: str, log: Path, url: str, wait_s: float, say: Callable[[str], None]
) -> None:
    began = time.monotonic()
    told = began
    while not _up(url):
        now = time.monotonic()
        if process.poll() is not None or now - began > wait_s:
            why = "ended" if process.poll() is not None else f"was not up after {wait_s:.0f} s"
            raise BenchError(f"the server with {MODE_VARIABLE}={mode} {why}; the end of {log}:\n{tail(log)}")
        if now - told > SAY_EVERY_S:
            told = now
            say(f"{mode}: starting, {tail(log, 1)[-160:]}")
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    """All of its processes, at once: the next server needs the GPU's memory, and nobody waits for answers any more."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)


def _up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:  # noqa: S310 (our own server)
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False

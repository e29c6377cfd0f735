"""The server that knows the truth, in its own process, and what it knows; what every client reports, in one form."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

TOKENS = 50
SECONDS = 6.0
ROUNDS = 5
"""Requests of one stream in about `SECONDS`: an answer takes 200 ms and 49 gaps of 20 ms."""
RAMP_S = 0.5
"""All clients start their streams over this time: a hundred requests in one instant measure the instant."""
PROMPT_TOKENS = 64


class PeerError(RuntimeError):
    """A client did not run or its report cannot be read; the message says why, in its own last words."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client reported, milliseconds, and over how many requests; `valid` is its own opinion where it has one."""

    requests: int
    ttft_mean: float
    ttft_p99: float
    itl_mean: float
    valid: bool | None = None


@contextmanager
def truth_server() -> Iterator[str]:
    """Yields the URL of a fresh truth server."""
    command = [sys.executable, "-m", "loadtest.truth_server", "--tokens", str(TOKENS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(" ", 1)[1])
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def truth(url: str) -> Seen:
    """The server's own figures over every streamed answer it finished. Raises PeerError when there was none."""
    with urllib.request.urlopen(url + "/truth", timeout=30) as response:  # noqa: S310 - our own server on loopback
        rows = np.array(json.loads(response.read()), dtype=np.float64)
    if not rows.size:
        raise PeerError("the server finished no streamed answer")
    ttft, itl = (rows[:, 1] - rows[:, 0]) / 1e6, (rows[:, 2] - rows[:, 1]) / 1e6 / (rows[:, 3] - 1)
    return Seen(len(rows), float(ttft.mean()), float(np.percentile(ttft, 99)), float(itl.mean()))

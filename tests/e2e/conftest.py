"""The real stack, started as a user starts it: `catalejo up` with the tiny checkpoint, on a free port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "engine/checkpoints/tiny"
MODEL = "tiny"
FIREWORKS = "accounts/fireworks/models/minimax-m3"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Stack:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def call(self, path: str, body: Any = None, *, raw: bytes | None = None, timeout: float = 120) -> tuple[int, Any]:
        """(status, parsed JSON or text). `body` is sent as JSON; None means GET."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read().decode()
        try:
            return status, json.loads(text)
        except json.JSONDecodeError:
            return status, text

    def chat(self, messages: Any, **fields: Any) -> dict[str, Any]:
        status, body = self.call("/v1/chat/completions", {"model": MODEL, "messages": messages, **fields})
        assert status == 200, body
        return body  # type: ignore[no-any-return]

    def metric(self, prefix: str) -> float:
        """Sum of all samples whose line starts with `prefix`."""
        _, text = self.call("/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(prefix))


def start(args: list[str], log: Path, ready: str, timeout: float = 120) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", *args], stdout=out, stderr=subprocess.STDOUT, env=env, cwd=ROOT
        )
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"catalejo {args[0]} ended with {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(ready, timeout=2):
                return process
        except OSError:
            time.sleep(0.2)
    process.kill()
    raise AssertionError(f"catalejo {args[0]} was not ready in {timeout} s:\n{log.read_text()}")


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    port = free_port()
    log = tmp_path_factory.mktemp("stack") / "log"
    url = f"http://127.0.0.1:{port}"
    process = start(["up", "--model", str(TINY), "--port", str(port)], log, f"{url}/ready")
    yield Stack(url, process, log)
    if process.poll() is None:
        stop(process)

"""The engines the suite runs against: the mock, the local engine with the tiny checkpoint, and any URL.

CATALEJO_CONTRACT_URL names a running engine, CATALEJO_CONTRACT_TOKEN its bearer token,
CATALEJO_CONTRACT_MODEL the folder with its config.json (default: the tiny checkpoint),
CATALEJO_CONTRACT_KEEP_ALIVE_S and CATALEJO_CONTRACT_MAX_BODY_BYTES what it was started with, if known."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "engine" / "checkpoints" / "tiny"
TOKEN = "contract-suite-token"


@dataclass(frozen=True)
class Target:
    """name        mock | local | url
    real           tokens come from a model: constraints and seeds mean something
    keep_alive_s   how long the engine may be silent
    max_body_bytes its configured cap, None: not known"""

    name: str
    url: str
    token: str | None
    image_token: int
    video_token: int
    vocab_size: int
    context_length: int
    real: bool
    keep_alive_s: float = 10.0
    max_body_bytes: int | None = None


def available() -> list[str]:
    names = ["mock"]
    if importlib.util.find_spec("engine.local.server") is not None:
        names.append("local")
    if os.environ.get("CATALEJO_CONTRACT_URL"):
        names.append("url")
    return names


needs_model = pytest.mark.parametrize(
    "target", [name for name in available() if name != "mock"], indirect=True, scope="session"
)
"""For tests where tokens must come from a model: the mock is left out."""


@contextmanager
def running(name: str, log: Path) -> Iterator[Target]:
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    if name == "mock":
        command = [sys.executable, "-m", "tests.mock_engine", "--port", str(port), "--model", str(TINY)]
        command += ["--token", TOKEN, "--keep-alive-s", "0.2", "--step-ms", "1", "--max-body-bytes", str(8 << 20)]
        with _process(command, url, log, {}):
            yield _target("mock", url, TOKEN, TINY, real=False, keep_alive_s=0.2, max_body_bytes=8 << 20)
    elif name == "local":
        command = [sys.executable, "-m", "engine.local.cli", "--port", str(port), "--model", str(TINY)]
        command += ["--token", TOKEN, "--keep-alive-s", "0.2", "--max-body-bytes", str(8 << 20)]
        with _process(command, url, log, {}):
            yield _target("local", url, TOKEN, TINY, real=True, keep_alive_s=0.2, max_body_bytes=8 << 20)
    else:
        model = Path(os.environ.get("CATALEJO_CONTRACT_MODEL", str(TINY)))
        url = os.environ["CATALEJO_CONTRACT_URL"].rstrip("/")
        keep_alive_s = float(os.environ.get("CATALEJO_CONTRACT_KEEP_ALIVE_S", "10"))
        cap = os.environ.get("CATALEJO_CONTRACT_MAX_BODY_BYTES")
        token = os.environ.get("CATALEJO_CONTRACT_TOKEN")
        body = None if cap is None else int(cap)
        yield _target("url", url, token, model, real=True, keep_alive_s=keep_alive_s, max_body_bytes=body)


def _target(
    name: str,
    url: str,
    token: str | None,
    model: Path,
    *,
    real: bool,
    keep_alive_s: float = 10.0,
    max_body_bytes: int | None = None,
) -> Target:
    config = json.loads((model / "config.json").read_text())
    text = config.get("text_config", config)
    return Target(
        name=name,
        url=url,
        token=token,
        image_token=config.get("image_token_id", config.get("image_token_index")),
        video_token=config.get("video_token_id", config.get("video_token_index")),
        vocab_size=text["vocab_size"],
        context_length=text["max_position_embeddings"],
        real=real,
        keep_alive_s=keep_alive_s,
        max_body_bytes=max_body_bytes,
    )


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def _process(command: list[str], url: str, log: Path, env: dict[str, str]) -> Iterator[None]:
    """Starts an engine and waits for /health; at the end asks it to stop, and insists after 20 s."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
    try:
        _wait_for_health(process, url, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_health(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the engine ended with {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    raise RuntimeError(f"the engine was not healthy in {seconds} s:\n{log.read_text()}")

"""The script that `helm test` runs, against a real gateway with a real engine behind it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.deploy.metric_names import CHART, ROOT

SCRIPT = CHART / "files" / "send_picture.py"
KEY = "0123456789abcdef-of-a-test"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    tiny = str(ROOT / "engine" / "checkpoints" / "tiny")
    env = {**os.environ, "CATALEJO_ADMISSION__API_KEYS": f'["{KEY}"]', "OMP_NUM_THREADS": "1"}
    up = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "up", "--model", tiny, "--port", str(port)], cwd=ROOT, env=env
    )
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2).close()
                break
            except (OSError, urllib.error.URLError):
                assert up.poll() is None, "catalejo up ended"
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        up.terminate()
        up.wait(30)


def _send(url: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    env = {"URL": url, "MODEL": "tiny", "TIMEOUT_S": "60", "CATALEJO_API_KEY": key}
    return subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True)


def test_it_passes_when_the_picture_is_seen(url: str) -> None:
    done = _send(url)
    assert done.returncode == 0, done.stderr
    assert "tokens of picture" in done.stdout


def test_it_fails_with_the_gateways_words(url: str) -> None:
    done = _send(url, key="wrong-key-0123456789")
    assert done.returncode != 0 and "HTTP 401" in done.stderr


def test_it_fails_when_nobody_answers() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        done = _send(f"http://127.0.0.1:{s.getsockname()[1]}")
    assert done.returncode != 0 and "FAILED" in done.stderr

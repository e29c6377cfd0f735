"""`catalejo up`: the local engine and the gateway as two child processes, one supervisor.

Ready means the gateway's /ready is 200; then a curl line is printed that works when pasted. Ctrl-C or SIGTERM stops
both; a child that dies by itself ends the other, with one clear line."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Final

from gateway.api.models.settings import checkpoint_name
from gateway.commands.paths import check_checkpoint, default_checkpoint, sample_picture
from gateway.processes.children import end_with_parent

READY_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 20.0


def run(model: Path | None, host: str, port: int, engine_port: int, config: Path | None) -> int:
    path = model or default_checkpoint()
    if problem := check_checkpoint(path):
        return _fail(problem)
    if problem := _port_taken(host, port):
        return _fail(problem)
    engine_port = engine_port or _free_port()
    me = [sys.executable, "-m", "gateway.cli"]
    engine = [*me, "engine", "--backend", "local", "--model", str(path), "--port", str(engine_port)]
    front = [*me, "gateway", "--engine", f"http://127.0.0.1:{engine_port}", "--model", str(path)]
    front += ["--host", host, "--port", str(port)]
    if config is not None:
        front += ["--config", str(config)]
    sample = sample_picture() if path == default_checkpoint() else None
    return _Supervisor({"engine": engine, "gateway": front}, host, port, checkpoint_name(path), sample).run()


class _Supervisor:
    def __init__(self, commands: dict[str, list[str]], host: str, port: int, model: str, picture: bytes | None) -> None:
        self._commands = commands
        self._host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        self._port = port
        self._model = model
        self._picture = picture
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._asked = False

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        env = {**os.environ}
        if tls := next((name for name in env if name.startswith("CATALEJO_TLS")), None):
            return _fail(f"{tls} is set, but `up` is for trying things on this machine, in plain HTTP: unset it, or start "
                         "`catalejo gateway` and `catalejo engine`")  # fmt: skip
        env.setdefault("CATALEJO_OBSERVABILITY__LOG_FORMAT", "text")
        env.setdefault("CATALEJO_SHUTDOWN_GRACE_S", "5")
        try:
            for name, command in self._commands.items():
                # Own session: Ctrl-C reaches the supervisor alone, which stops the children in order.
                self._children[name] = subprocess.Popen(
                    command,
                    start_new_session=True,
                    env=env,
                    preexec_fn=end_with_parent,
                )
            _say(f"starting the engine and the gateway with the checkpoint {self._model!r} ...")
            return self._watch()
        finally:
            self._stop()

    def _ask(self, number: int, frame: object) -> None:
        self._asked = True

    def _watch(self) -> int:
        deadline, announced = time.monotonic() + READY_TIMEOUT_S, False
        while not self._asked:
            for name, child in self._children.items():
                if (code := child.poll()) is not None:
                    other = "gateway" if name == "engine" else "engine"
                    return _fail(f"the {name} ended with code {code}; stopping the {other}")
            if not announced and self._ready():
                announced = True
                self._announce()
            elif not announced and time.monotonic() > deadline:
                return _fail(f"not ready after {READY_TIMEOUT_S:.0f} s")
            time.sleep(0.1)
        if not announced and self._ready():
            self._announce()  # ready and stopped within one turn of the loop
        _say("stopping")
        return 0

    @property
    def _url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/ready", timeout=1) as response:  # noqa: S310 - our own gateway
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _announce(self) -> None:
        url = self._url
        _say(f"ready at {url}  (docs: {url}/docs, Ctrl-C stops)")
        _say(f"try it:\n\n{curl_line(url, self._model, self._picture)}\n")

    def _stop(self) -> None:
        """The gateway first, so that it can end its streams; then the engine."""
        for name in reversed(self._children):
            child = self._children[name]
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
                try:
                    child.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def curl_line(url: str, model: str, picture: bytes | None = None) -> str:
    """A command that sends a small picture and streams the answer; holds no character a shell would read."""
    image = "data:image/png;base64," + b64encode(picture or _two_tone_png(56)).decode()
    content = [{"type": "text", "text": "What is in this picture?"}, {"type": "image_url", "image_url": {"url": image}}]
    body = {"model": model, "stream": True, "max_tokens": 32, "messages": [{"role": "user", "content": content}]}
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(body)}'"


def _two_tone_png(side: int) -> bytes:
    """A square, red above blue."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    half = side // 2
    rows = (b"\0" + b"\xe0\x20\x20" * side) * half + (b"\0" + b"\x20\x40\xe0" * side) * (side - half)
    header = chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def _port_taken(host: str, port: int) -> str | None:
    if not port:
        return None
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as e:
            return f"cannot listen on {host}:{port} ({e.strerror}); choose another with --port"
    return None


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _say(text: str) -> None:
    print(f"catalejo: {text}", flush=True)  # noqa: T201


def _fail(text: str) -> int:
    print(f"catalejo: {text}", file=sys.stderr, flush=True)  # noqa: T201
    return 1

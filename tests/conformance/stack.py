"""A real gateway process in front of a mock engine process, for clients that live in another virtual environment.

Standard library only. CATALEJO_PYTHON is the interpreter that has the project (default: .venv, else this one).

    with Stack() as stack:            # stack.url, stack.key, stack.script([...]), stack.requests(), stack.aborts()
    python -m tests.conformance.stack COMMAND ...     # runs COMMAND with CATALEJO_URL, CATALEJO_KEY, CATALEJO_MOCK set
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "engine" / "checkpoints" / "tiny"
KEY = "sk-conformance"
MODEL = "tiny"
EOS = [498]
CONTEXT_LENGTH = 16384


def project_python() -> str:
    given = os.environ.get("CATALEJO_PYTHON")
    own = ROOT / ".venv" / "bin" / "python"
    return given or (str(own) if own.exists() else sys.executable)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Stack:
    def __init__(self, *engine_options: str, **environment: str) -> None:
        """`engine_options`: of the mock engine's command line. `environment`: more of the gateway's settings, without
        the prefix: API__KEEP_ALIVE_S="1"."""
        self.key = KEY
        self._engine_options = engine_options
        self.model = MODEL
        self.image_port = free_port()
        self._environment = {
            "ADMISSION__API_KEYS": json.dumps([KEY]),
            "CONTEXT_LENGTH": str(CONTEXT_LENGTH),
            "MEDIA__FETCH__PRIVATE_ENDPOINTS": json.dumps([f"127.0.0.1:{self.image_port}"]),
            "MEDIA__FETCH__PORTS": json.dumps([80, 443, self.image_port]),
            **environment,
        }
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []

    def __enter__(self) -> Stack:
        self._logs = tempfile.TemporaryDirectory(prefix="catalejo-conformance-")
        engine, gateway = free_port(), free_port()
        self.mock = f"http://127.0.0.1:{engine}"
        self.url = f"http://127.0.0.1:{gateway}"
        try:
            mock = ["tests.mock_engine", "--port", str(engine), "--model", str(TINY), *self._engine_options]
            self._start(mock, f"{self.mock}/health")
            command = ["gateway.cli", "gateway", "--engine", self.mock, "--model", str(TINY)]
            self._start([*command, "--model-name", MODEL, "--port", str(gateway)], f"{self.url}/ready")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    # ------------------------------------------------------------------------------------------- the mock
    def script(self, *answers: dict[str, Any]) -> None:
        """The engine's next answers, in turn; the last repeats. Clears the log."""
        self._call("PUT", "/script", json.dumps(answers).encode())
        self._call("DELETE", "/log")

    def requests(self) -> list[dict[str, Any]]:
        return self._log("request")

    def aborts(self, seconds: float = 3.0) -> list[dict[str, Any]]:
        """Waits for the first abort, at most so long."""
        deadline = time.monotonic() + seconds
        while not (found := self._log("abort")) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def wait_for_request(self, seconds: float = 10.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := self.requests():
                return found[-1]
            time.sleep(0.02)
        raise AssertionError("the engine saw no request")

    def _log(self, event: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._call("GET", f"/log?event={event}").splitlines()]

    def _call(self, method: str, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.mock + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            body: bytes = response.read()
            return body

    # ------------------------------------------------------------------------------------------- processes
    def _start(self, module: list[str], ready: str, seconds: float = 60) -> None:
        log = Path(self._logs.name) / f"{len(self._processes)}.log"
        environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONHOME")}
        environment |= {f"CATALEJO_{k}": v for k, v in self._environment.items()}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [project_python(), "-m", *module], stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT
            )
        self._processes.append((process, log))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"{module[0]} ended with {process.returncode}:\n{log.read_text()}")
            try:
                with urllib.request.urlopen(ready, timeout=2):
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{module[0]} was not ready in {seconds} s:\n{log.read_text()}")

    def _stop(self) -> None:
        for process, _ in reversed(self._processes):
            process.terminate()
        for process, _ in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self._logs.cleanup()


# ----------------------------------------------------------------------------------------- what a model says
def call_block(*calls: tuple[str, dict[str, str]]) -> str:
    """M3's syntax for tool calls with string-like arguments."""
    n = "]<]minimax[>["
    out = f"{n}<tool_call>\n"
    for name, arguments in calls:
        fields = "".join(f"{n}<{k}>{v}{n}</{k}>" for k, v in arguments.items())
        out += f'{n}<invoke name="{name}">{fields}{n}</invoke>\n'
    return out + f"{n}</tool_call>"


def in_pieces(text: str, size: int = 7) -> list[str]:
    """Cut as an engine would cut it, but never inside a control token."""
    markers = ("]<]minimax[>[", "<tool_call>", "</tool_call>", "<mm:think>", "</mm:think>")
    out, start = [], 0
    while start < len(text):
        marker = next((m for m in markers if text.startswith(m, start)), None)
        if marker is not None:
            out.append(marker)
            start += len(marker)
            continue
        following = [at for m in markers if (at := text.find(m, start)) >= 0]
        end = min([start + size, len(text), *following])
        out.append(text[start:end])
        start = end
    return out


def says(text: str, **more: Any) -> dict[str, Any]:
    """An answer of a script: the text in small pieces, then end of turn."""
    return {"pieces": [*in_pieces(text), EOS], **more}


def main() -> int:
    with Stack() as stack:
        environment = {
            **os.environ,
            "CATALEJO_URL": stack.url,
            "CATALEJO_KEY": stack.key,
            "CATALEJO_MODEL": stack.model,
            "CATALEJO_MOCK": stack.mock,
        }
        return subprocess.call(sys.argv[1:], env=environment)


if __name__ == "__main__":
    sys.exit(main())

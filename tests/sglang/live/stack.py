"""A gateway process in front of the running SGLang."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.targets import ROOT, _free_port, _wait_for_health


@contextmanager
def gateway_in_front(engine: str, model: Path, name: str, folder: Path) -> Iterator[str]:
    """Its URL. `folder` gets the log."""
    port = _free_port()
    log = folder / "log"
    command = [sys.executable, "-m", "gateway.cli", "gateway", "--model", str(model), "--port", str(port)]
    # On a busy CPU an engine may be silent for long, and is not lost for that.
    (folder / "config.yaml").write_text("routing: {health_timeout_s: 30}\n")
    command += ["--engine", engine, "--model-name", name, "--config", str(folder / "config.yaml")]
    keep = {k: v for k, v in os.environ.items() if not k.startswith("CATALEJO_")}
    token = os.environ.get("CATALEJO_CONTRACT_TOKEN", "")
    with log.open("wb") as out:
        environment = {**keep, "CATALEJO_ENGINE_TOKEN": token, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
    try:
        _wait_for_health(process, f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)

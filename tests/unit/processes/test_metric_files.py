"""A full disk under the metrics of several processes is an error, not the end of a process by SIGBUS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.processes.metric_files import KINDS

ROOT = Path(__file__).resolve().parents[3]
START = """
import logging, sys, pathlib
from gateway.processes import metric_files
from gateway.processes.sockets import ListenError
logging.basicConfig(format="%(message)s")
folder = pathlib.Path(sys.argv[1])
try:
    metric_files.install(folder)
except ListenError as e:
    print(e)
    sys.exit(3)
from gateway.metrics import Metrics
metrics = Metrics()
"""
FILL = """
for i in range(20_000):  # 2 MB and more
    metrics.errors.labels(f"route-{i}", "x" * 40).inc()
metrics.http_in_flight.set(7)
metrics.worker_up.labels("e").set(1)
(folder / "filler").unlink(missing_ok=True)
metric_files.RETRY_S = 0
metrics.errors.labels("route-19999", "x" * 40).inc()
print(metrics.render().decode())
"""


def on_a_disk_of(kib: int, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` with a file system that is so small at `folder`."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (util-linux)")
    alone = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a namespace")
    script = f'mount -t tmpfs -o size={kib}k none "$2" && exec "$0" -c "$1" "$2"'
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [*alone, "sh", "-c", script, sys.executable, code, str(folder)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_a_start_without_room_is_one_clear_line(tmp_path: Path) -> None:
    ended = on_a_disk_of(200, tmp_path, START)
    assert ended.returncode == 3, ended
    assert f"no room for metrics in {tmp_path} (No space left on device); set TMPDIR" in ended.stdout


def test_a_disk_that_fills_later_costs_new_series_until_it_has_room(tmp_path: Path) -> None:
    filled = '(folder / "filler").write_bytes(bytes(3 << 20))\n'
    ended = on_a_disk_of(7 << 10, tmp_path, START + filled + FILL)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    assert ended.stderr.count("no room for more metrics") == 1
    shown = dict(re.findall(r"^(catalejo_\S+?)(?:\{.*\})? (\S+)$", ended.stdout, re.M))
    assert shown["catalejo_http_requests_in_flight"] == "7.0" and shown["catalejo_worker_up"] == "1.0"
    counts = dict(re.findall(r'^catalejo_errors_total\{.*route="route-(\d+)"\} (\S+)$', ended.stdout, re.M))
    assert 1000 < len(counts) < 20_000, "what had no room is left out"
    assert counts["19999"] == "2.0", "what was counted meanwhile is there once there is room"


def test_every_kind_of_file_is_known(tmp_path: Path) -> None:
    every = (
        "for m in vars(metrics).values():\n    names = getattr(m, '_labelnames', ())\n    names and m.labels(*names)\n"
    )
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", START + every, str(tmp_path)], cwd=ROOT, env=env, check=True)
    assert {p.name.rpartition("_")[0] for p in tmp_path.iterdir()} == set(KINDS)

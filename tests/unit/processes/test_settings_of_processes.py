"""What a reload does to the settings of several processes: those that are kept for later ones, and what waits for a restart."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.serve import log_start
from gateway.config import load
from gateway.processes.supervisor import Supervisor
from gateway.processes.worker import Order, adapted
from gateway.reload import differences

BASE: dict[str, Any] = {"model_path": "/m/tiny", "workers": 2, "operations": {"port": 0}, "port": 0}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(BASE))
    return path


@pytest.fixture
def supervisor(file: Path, tmp_path: Path) -> Supervisor:
    made = Supervisor(load(file), file, {})
    made._folder = tmp_path
    made._write_settings(made._settings)
    return made


def aliases(folder: Path) -> list[str]:
    kept: list[str] = json.loads((folder / "settings.yaml").read_text())["model_aliases"]
    return kept


async def test_what_the_processes_accept_is_kept(supervisor: Supervisor, file: Path, tmp_path: Path) -> None:
    file.write_text(json.dumps({**BASE, "model_aliases": ["new"]}))
    await supervisor._reload()
    assert (aliases(tmp_path), supervisor._reloads) == (["new"], 1)


@pytest.mark.parametrize(
    "engine",
    [
        {"url": "http://h:99999"},
        {"url": "http://[::1"},
        {"url": "https://h", "tls": {"ca": "/nowhere.pem"}},
    ],
)
async def test_what_the_processes_refuse_is_not_kept(
    supervisor: Supervisor, file: Path, tmp_path: Path, engine: dict[str, Any]
) -> None:
    file.write_text(json.dumps({**BASE, "model_aliases": ["new"], "engines": [engine]}))
    await supervisor._reload()
    assert "new" not in aliases(tmp_path) and not supervisor._settings.engines
    assert supervisor._reloads == 1, "the processes are asked, and say what is wrong"


async def test_a_full_disk_is_one_line_and_nothing_changes(
    supervisor: Supervisor, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text(json.dumps({**BASE, "model_aliases": ["new"]}))
    (tmp_path / "settings.new").symlink_to("/dev/full")
    await supervisor._reload()
    [line] = [r.getMessage() for r in caplog.records]
    assert "not reloaded by any process: OSError" in line and "No space left" in line
    assert "new" not in aliases(tmp_path) and "new" not in supervisor._settings.model_aliases
    assert supervisor._reloads == 0
    (tmp_path / "settings.new").unlink()
    await supervisor._reload()
    assert aliases(tmp_path) == ["new"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, []),
        ({"port": 8001}, ["port"]),
        ({"operations": {"port": 8002}}, ["operations.port"]),
        ({"operations": {}}, ["operations.port"]),
        ({"media": {"files": {"location": "/uploads"}}}, ["media.files.location"]),
        ({"workers": 3}, ["workers"]),
    ],
)
def test_a_change_of_what_the_supervisor_decided_shows(change: dict[str, Any], named: list[str]) -> None:
    order = Order(0, "", None, {}, "", port=41000, operations_port=41001, files="/private")
    first = load(**BASE)
    serving = adapted(first, order)
    assert (serving.port, serving.operations.port, serving.media.files.location) == (41000, 41001, "/private")
    read = adapted(load(**{**BASE, **change}), order, first)
    assert [".".join(path) for path in differences(serving, read)] == named


def test_the_start_shows_no_password(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_start(load(**BASE, engines=[{"url": "http://user:p@ss@host:1"}]), 1, None)
    assert "engines: http://**********@host:1" in caplog.text
    assert "user" not in caplog.text and "ss@" not in caplog.text

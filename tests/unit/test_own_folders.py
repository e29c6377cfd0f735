"""Temporary folders of gateways that were killed go when the next one starts; those in use stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.own_folders import OwnFolder

ROOT = Path(__file__).resolve().parents[2]
OWNER = "from gateway.own_folders import OwnFolder; f = OwnFolder('files-'); (f.path / 'x').mkdir(); print(f.path, flush=True)"
SECOND = "import sys; from pathlib import Path; from gateway.own_folders import hold; hold(Path(sys.argv[1])); print(flush=True)"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@contextmanager
def process(code: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(a process that has run `code` and waits, the line it printed)."""
    command = [sys.executable, "-c", f"{code}; input()", *args]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        try:
            yield made, made.stdout.readline().strip()
        finally:
            made.kill()


def start_another(temporary: Path) -> set[str]:
    """What is there beside a gateway that starts, and ends again."""
    own = OwnFolder("")
    left = {p.name for p in temporary.iterdir()} - {own.path.name}
    own.close()
    assert not own.path.exists()
    return left


def test_a_killed_gateways_folder_goes_and_a_live_ones_stays(temporary: Path) -> None:
    """Symptom: uploads and metrics of killed gateways filled the disk."""
    with process(OWNER) as (owner, path):
        folder = Path(path)
        for _ in range(2):
            assert start_another(temporary) == {folder.name}
        with process(SECOND, path) as (second, _):
            owner.kill()
            owner.wait()
            assert start_another(temporary) == {folder.name}, "a process of the same gateway uses it"
            second.kill()
            second.wait()
    assert start_another(temporary) == set()


def test_nothing_else_is_touched(temporary: Path) -> None:
    (temporary / "catalejo-without-lock").mkdir()  # another tool's, or one that is being made
    (temporary / "catalejo-file").write_text("")
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text("")
    (temporary / "catalejo-link").symlink_to(elsewhere)
    linked = temporary / "catalejo-linked-lock"
    linked.mkdir()
    (linked / "lock").symlink_to(elsewhere / "lock")
    before = {p.name for p in temporary.iterdir()}
    assert start_another(temporary) == before
    assert os.listdir(elsewhere) == ["lock"]

"""The gateway's benchmark: peers are taken where they are named, and who is missing is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.bench.load import EMPTY, EVENT
from gateway.bench.peers import GRPC, HTTP, field_of


@pytest.fixture(autouse=True)
def nothing_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def executable(path: Path, text: str = "#!/bin/sh\nexit 0\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_without_peers_only_ours_run_and_the_others_are_named() -> None:
    field = field_of(None, None, 50, [])
    assert [c.name for c in field.contestants] == ["relay", "catalejo"]
    assert set(field.engines) == {HTTP}
    assert set(field.missing) == {"smg-http", "smg-grpc", "litellm"}
    assert all("pip install" in why for why in field.missing.values())
    assert field_of(None, None, 50, ["catalejo"]).missing == {}


def test_a_named_peer_runs_from_its_own_environment(tmp_path: Path) -> None:
    smg = executable(tmp_path / "smg")
    executable(tmp_path / "python")
    litellm = executable(tmp_path / "litellm")
    field = field_of(smg, litellm, 50, [])
    assert [c.name for c in field.contestants] == ["relay", "catalejo", "smg-http", "smg-grpc", "litellm"]
    assert [c.name for c in field.contestants if c.works] == ["catalejo", "smg-grpc"]
    assert field.engines[GRPC][0] == str(tmp_path / "python")
    assert field.engines[HTTP][0] == sys.executable
    assert field.missing == {}


def test_grpc_needs_its_engines_packages(tmp_path: Path) -> None:
    smg = executable(tmp_path / "smg")
    executable(tmp_path / "python", "#!/bin/sh\nexit 1\n")
    field = field_of(smg, None, 50, [])
    assert "smg-grpc-proto" in field.missing["smg-grpc"]
    assert GRPC not in field.engines


def test_a_peer_that_is_not_where_it_was_said_to_be_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no executable"):
        field_of(tmp_path / "smg", None, 50, [])


def test_a_role_chunk_without_text_is_no_event() -> None:
    chunk = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    assert chunk.count(EVENT) == chunk.count(EMPTY) == 1

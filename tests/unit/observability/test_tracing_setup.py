"""A configured collector without the packages stops the start with a line that says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.observability.settings import TracingSettings
from gateway.observability.tracing import missing
from tests.api.harness import TINY


def test_packages_are_asked_for_only_when_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configured = TracingSettings.model_validate({"endpoint": "http://collector:4318"})
    assert missing(configured) is None
    monkeypatch.setattr("gateway.observability.tracing.find_spec", lambda name: None)
    assert missing(TracingSettings()) is None
    assert "pip install 'catalejo[tracing]'" in str(missing(configured))
    config = tmp_path / "c.yaml"
    config.write_text("observability: {tracing: {endpoint: 'http://collector:4318'}}")
    result = CliRunner().invoke(app, ["gateway", "--config", str(config), "--model", str(TINY)])
    assert result.exit_code == 2 and "catalejo[tracing]" in result.output


def test_a_missing_parent_package_is_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [m for m in sys.modules if m.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    assert missing(TracingSettings.model_validate({"endpoint": "http://collector:4318"}))


@pytest.mark.parametrize("wrong", ["collector:4318", "ftp://collector", "", "http://"])
def test_an_endpoint_is_an_http_url(wrong: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        TracingSettings.model_validate({"endpoint": wrong})

"""docs/configuration.md is what the settings say, and says something of each."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.commands.config_reference import Field, fields, reference
from gateway.config import load
from tests.api.harness import ROOT

PAGE = ROOT / "docs" / "configuration.md"
EVERY = [field for _, members in fields() for field in members]


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "catalejo config-reference > docs/configuration.md"
    assert CliRunner().invoke(app, ["config-reference"]).output == reference()


def test_every_setting_is_described() -> None:
    assert [".".join(f.path) for f in EVERY if len(f.description) < 5] == []
    assert len(EVERY) > 150


def test_every_link_has_a_heading() -> None:
    text = reference()
    headings = {re.sub(r"[^a-z0-9_-]", "", h.lower()) for h in re.findall(r"^## (.*)$", text, re.M)}
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= headings


NEEDS_NEIGHBOURS = {("discovery", "file"), ("discovery", "dns")}
SCALARS = [
    f
    for f in EVERY
    if f.environment and isinstance(f.info.default, (bool, int, float)) and f.path[:2] not in NEEDS_NEIGHBOURS
]


@pytest.mark.parametrize("field", SCALARS, ids=lambda f: ".".join(f.path))
def test_the_environment_name_sets_the_value(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another value than the default, within its bounds: the bounds themselves or a step from them."""
    assert field.environment is not None
    default = field.info.default
    for candidate in (not default,) if isinstance(default, bool) else (default + 1, default - 1, default / 2, 0.5):
        monkeypatch.setenv(field.environment, str(candidate).lower())
        try:
            settings = load(model_path="/m")
        except ValueError:
            continue
        value = settings
        for name in field.path:
            value = getattr(value, name)
        assert value == candidate
        return
    pytest.fail("no other value is allowed")

"""helm lint, strict, over the whole matrix; two runs render the same text; every template renders somewhere."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.deploy.chart.matrix import MATRIX
from tests.deploy.chart.rendering import helm, set_arguments
from tests.deploy.metric_names import CHART


def _run(command: str, name: str, *more: str) -> str:
    files, sets = MATRIX[name]
    arguments = [str(helm()), *command.split(), str(CHART), *more]
    for file in files:
        arguments += ["-f", str(CHART / file)]
    done = subprocess.run([*arguments, *set_arguments(sets)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MATRIX)
def test_lint_finds_nothing(name: str) -> None:
    out = _run("lint --strict --quiet", name)
    assert "WARNING" not in out and "ERROR" not in out, out


def test_every_template_renders_in_some_scenario() -> None:
    seen: set[str] = set()
    for name in MATRIX:
        seen |= set(re.findall(r"^# Source: catalejo/(\S+)", _run("template m3", name), re.M))
    all_of_them = {str(p.relative_to(CHART)) for p in (CHART / "templates").rglob("*.yaml")}
    assert all_of_them - seen == {"templates/checks.yaml", "templates/extra-objects.yaml"}


def test_the_same_values_render_the_same_text() -> None:
    fixed = ("--set", "engineToken.value=0123456789abcdef")
    assert _run("template m3", "three-engines", *fixed) == _run("template m3", "three-engines", *fixed)

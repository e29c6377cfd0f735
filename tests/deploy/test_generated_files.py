"""What is generated is fresh, and values.yaml keeps its own rules."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from deploy.grafana import generate as dashboards
from deploy.helm import generate as chart
from tests.deploy.metric_names import CHART, ROOT

VALUES = (CHART / "values.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", ["deploy/helm/generate.py", "deploy/grafana/generate.py"])
def test_generated_files_are_fresh(script: str) -> None:
    done = subprocess.run([sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_values_yaml_stays_under_700_lines() -> None:
    assert len(VALUES.splitlines()) < 700


def test_a_key_without_a_sentence_is_named() -> None:
    with pytest.raises(chart.StyleError, match=r"gateway.colour needs a sentence"):
        chart.parse("# Part.\ngateway:\n  colour: red\n")


def test_a_null_without_a_type_is_named() -> None:
    with pytest.raises(chart.StyleError, match="a null default needs"):
        chart.schema(chart.parse("# What.\nsize: null\n"))


def test_the_schema_is_strict_everywhere_but_below_global() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def loose(node: dict, path: str) -> list[str]:
        out = [path] if node.get("properties") and node.get("additionalProperties") is not False else []
        return out + [p for k, v in node.get("properties", {}).items() for p in loose(v, f"{path}.{k}")]

    assert loose(schema, "") == [".global"]


def test_every_value_is_in_the_readme() -> None:
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    leaves = [e.name for e in chart.walk(chart.parse(VALUES)) if not e.has_documented_keys]
    assert [name for name in leaves if f"| `{name}` |" not in readme] == []
    assert len(leaves) > 150


def test_dashboards_have_distinct_panels() -> None:
    for name in dashboards.DASHBOARDS:
        panels = dashboards.dashboard(name)["panels"]
        titles = [p["title"] for p in panels if p["type"] != "row"]
        assert len(titles) == len(set(titles))
        assert len({p["id"] for p in panels}) == len(panels)

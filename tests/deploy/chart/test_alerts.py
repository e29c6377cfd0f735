"""promtool: the rules are valid, and each alert fires when it must and stays quiet when it must."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.alerts.cases import CASES, promtool_file
from tests.deploy.chart.matrix import CLAIM, H200, WATCHED
from tests.deploy.chart.rendering import render
from tests.deploy.metric_names import CHART

RULES = CHART / "files" / "alerts.yaml"
ALERTS = {r["alert"]: r for g in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for r in g["rules"]}


def _promtool(*arguments: str) -> None:
    tool = Path(os.environ["CATALEJO_TOOLS"]) / "promtool"
    done = subprocess.run([str(tool), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    _promtool("check", "rules", "--lint-fatal", str(RULES))


@pytest.mark.parametrize("name", CASES)
def test_alert_fires_and_stays_quiet(name: str, tmp_path: Path) -> None:
    file = tmp_path / "alert.test.yaml"
    file.write_text(
        yaml.safe_dump(promtool_file(name, ALERTS[name]["labels"]["severity"], str(RULES))), encoding="utf-8"
    )
    _promtool("test", "rules", str(file))


def test_the_chart_renders_the_same_rules_with_the_operators_labels() -> None:
    sets = (
        CLAIM,
        *WATCHED,
        "monitoring.prometheusRule.alertLabels.team=a",
        'monitoring.prometheusRule.disabled:=["CatalejoNoGateway"]',
    )
    rules = [r for g in render(*sets, files=H200).one("PrometheusRule")["spec"]["groups"] for r in g["rules"]]
    assert {r["alert"] for r in rules} == set(ALERTS) - {"CatalejoNoGateway"}
    for rule in rules:
        assert rule["labels"].pop("team") == "a"
        assert rule == ALERTS[rule["alert"]]

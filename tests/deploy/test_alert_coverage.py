"""Every alert has a test, a runbook entry and the words that a person at night needs."""

from __future__ import annotations

import re

import yaml

from tests.deploy.alerts.cases import CASES
from tests.deploy.metric_names import CHART, ROOT

GROUPS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
ALERTS = {r["alert"]: r for g in GROUPS for r in g["rules"]}


def test_every_alert_has_a_case_and_every_case_an_alert() -> None:
    assert set(CASES) == set(ALERTS)


def test_every_alert_has_a_runbook_entry_and_every_entry_an_alert() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    runbook = text[text.index("## Runbook") : text.index("## Releases")]
    assert set(re.findall(r"^\*\*(Catalejo\w+)\*\*", runbook, re.M)) == set(ALERTS)


def test_every_alert_says_how_bad_what_and_why() -> None:
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("page", "ticket", "info"), name
        assert rule["annotations"]["summary"].endswith(".") and rule["annotations"]["description"].endswith("."), name
        assert rule["for"], name

"""Alerts, dashboards and autoscaling ask only for metrics, and labels, that the code exports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from engine.local.options import EngineOptions
from engine.local.server import create_app
from gateway.metrics import Metrics
from tests.deploy.metric_names import CHART, ROOT, exported, used

# Labels that Prometheus and its operator add to every target.
TARGET_LABELS = {"namespace", "pod", "job", "instance", "__name__"}
SELECTOR = re.compile(r"(catalejo_[a-z0-9_]+)\s*\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|ignoring|without)\s*\(([^)]*)\)")


@pytest.fixture(scope="module")
def names() -> dict[str, set[str]]:
    metrics = Metrics()
    metrics.build.info({"version": "0"})
    engine = create_app(EngineOptions(model=ROOT / "engine" / "checkpoints" / "tiny", kv_pages=64))
    return {**exported(metrics.registry), **exported(engine.state.service.metrics.registry)}


def queries() -> list[tuple[str, str]]:
    out = []
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        out += [(f"{path.name}: {p['title']}", t["expr"]) for p in board["panels"] for t in p.get("targets", [])]
        out += [(f"{path.name}: variable", v["query"]) for v in board["templating"]["list"]]
    for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]:
        out += [(rule["alert"], rule["expr"]) for rule in group["rules"]]
    for name in ("scaledobject.yaml", "hpa.yaml"):
        text = (CHART / "templates" / "gateway" / name).read_text(encoding="utf-8")
        out += [(name, line) for line in text.splitlines() if "catalejo_" in line]
    return out


def test_every_query_names_a_metric_that_the_code_exports(names: dict[str, set[str]]) -> None:
    unknown = {(where, name) for where, query in queries() for name in used(query) if name not in names}
    assert not unknown
    assert len({name for _, query in queries() for name in used(query)}) > 60


def test_every_label_in_a_query_is_one_of_the_metrics_labels(names: dict[str, set[str]]) -> None:
    wrong = []
    for where, query in queries():
        metrics = used(query)
        if not metrics or "{{" in query:
            continue
        for metric, selector in SELECTOR.findall(query):
            wrong += [
                (where, metric, label)
                for label in re.findall(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"', selector)
                if label not in names[metric] | TARGET_LABELS
            ]
        known = set().union(*(names[m] for m in metrics)) | TARGET_LABELS
        wrong += [
            (where, label.strip())
            for group in GROUPING.findall(query)
            for label in group.split(",")
            if label.strip() and label.strip() not in known
        ]
    assert not wrong


def test_every_exported_metric_is_on_a_dashboard(names: dict[str, set[str]]) -> None:
    shown = {name for _, query in queries() for name in used(query)}
    families = {re.sub(r"_(bucket|sum|count)$", "", n) for n in names if not n.endswith("_created")}
    missing = {f for f in families if not any(s == f or s.startswith(f"{f}_") for s in shown)}
    assert not missing, "add a panel in deploy/grafana/generate.py"


def test_the_files_for_people_are_the_charts_files() -> None:
    assert Path(ROOT / "deploy/alerts/catalejo.yaml").resolve() == (CHART / "files/alerts.yaml").resolve()
    assert Path(ROOT / "deploy/grafana/dashboards").resolve() == (CHART / "files/dashboards").resolve()

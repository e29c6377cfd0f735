"""No value is without effect, and no template reads a value that does not exist.

Each leaf of values.yaml is changed by itself, in the scenario that reaches it, and the render must change. A template
that reads a missing value would render the same with it set; helm's schema check refuses such a key, so the reverse
is checked on the text of the templates."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from deploy.helm import generate
from tests.deploy.chart.matrix import MATRIX
from tests.deploy.chart.rendering import render, set_arguments
from tests.deploy.metric_names import CHART

VALUES = generate.parse((CHART / "values.yaml").read_text(encoding="utf-8"))
ENTRIES = {e.name: e for e in generate.walk(VALUES)}
LEAVES = [e for e in ENTRIES.values() if not e.has_documented_keys]

# Values that speak only in a scenario: prefix -> (name in the matrix, further --set texts). The longest prefix counts.
SCENARIO: dict[str, tuple[str, tuple[str, ...]]] = {
    "": ("h200x8", ()),
    "nameOverride": ("h200x8", ()),
    "weights.hostPath": ("host-path", ()),
    "weights.image": ("oci-image", ()),
    "weights.download": ("download", ()),
    "engineToken.key": ("secrets", ()),
    "gateway.auth.apiKeysSecret": ("secrets", ()),
    "gateway.auth.tenantsSecret": ("secrets", ()),
    "gateway.autoscaling": ("keda", ()),
    "engine.updateStrategy": ("h100x8", ()),
    "engine.drain.drainSeconds": ("cpu-demo", ()),
    "ingress": ("keys", ()),
    "httpRoute": ("gateway-api", ()),
    "inferencePool": ("gateway-api", ()),
    "monitoring": ("three-engines", ()),
    "networkPolicy.metricsFrom": ("closed", ()),
    "redis": ("everything", ()),
    "gateway.workers": ("everything", ()),
    "gateway.operations": ("everything", ()),
    "gateway.operations.enabled": ("open", ()),
    "gateway.tls": ("everything", ()),
    "gateway.ledger": ("everything", ()),
    "gateway.ledger.enabled": ("cpu-demo", ()),
    "gateway.ledger.sizeLimit": ("ledger-of-the-pod", ()),
    "gateway.tracing": ("everything", ()),
    "networkPolicy.tracesTo": ("everything", ()),
    "monitoring.serviceMonitor.keySecret": ("one-port", ()),
    "networkPolicy.apiServer": ("found-by-slices", ()),
    "tests.apiKeySecret": ("secrets", ()),
    "loadTest": ("load-test", ()),
}

# Values that a generic change would make invalid: name -> (another value, further --set texts).
CHANGE: dict[str, Any] = {
    "weights.source": "image",
    "weights.pvc.claimName": "other",
    "weights.hostPath.path": "/other",
    "weights.image.reference": "other:1",
    "weights.download.accessModes": ["ReadWriteMany", "ReadWriteOnce"],
    "engineToken.value": "0123456789abcdef0123",
    "gateway.auth.apiKeys": ["0123456789abcdef0123"],
    "engine.kind": "Deployment",
    "engine.external": [{"url": "http://far"}],
    "engine.extraArgs": ["--x"],
    "gateway.autoscaling.prometheusAddress": "http://other",
    "gateway.autoscaling.timeToFirstTokenSeconds": 9,
    "inferencePool.endpointPicker.name": "other",
    "httpRoute.requestTimeout": "9s",
    "monitoring.prometheusRule.disabled": ["CatalejoNoGateway"],
    "networkPolicy.privateRanges": ["10.0.0.0/8"],
    "networkPolicy.privateRanges6": ["fc00::/7"],
    "redis.cidr": "10.9.9.9/32",
    "redis.url": "rediss://other:6390/1",
    "gateway.tracing.endpoint": "https://other",
    "gateway.tracing.sampleRatio": 0.5,
    "gateway.ledger.prices": {"m": {"input": 1}},
    "networkPolicy.tracesTo": [{"podSelector": {}}],
    "loadTest.url": "https://m3.example.org",
    "networkPolicy.apiServer.cidr": "10.9.9.9/32",
    "gateway.checkpoint.claimName": "other",
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}],
    "model.contextLength": 4096,
    "security.engineContainer": {"privileged": False},
    "gateway.config": {"api": {"max_n": 2}},
    "engine.flags": {"x": 1},
}
TOGETHER: dict[str, tuple[str, ...]] = {
    "weights.source": ("weights.image.reference=x:1",),
    "engine.enabled": ('engine.external:=[{"url":"http://far"}]',),
    "engine.backend": ("engine.tensorParallel=8",),
    "engine.nodes": ("engine.kind=LeaderWorkerSet", "engine.pipelineParallel=2"),
    "engine.gpus": ("engine.tensorParallel=9",),
    "engine.tensorParallel": ("engine.gpus=9",),
    "engine.pipelineParallel": ("engine.nodes=2", "engine.kind=LeaderWorkerSet"),
    "gateway.service.type": ("gateway.auth.allowAnonymous=true",),
    "gateway.autoscaling.kind": (),
    "httpRoute.enabled": (),
    "inferencePool.enabled": ("httpRoute.toInferencePool=false",),
    "ingress.enabled": (),
    "gateway.drain.preStopSeconds": (),
    "gateway.updateStrategy.maxUnavailable": (),
}  # fmt: skip
ALONE_BEFORE = {"weights.source", "engine.gpus", "engine.tensorParallel", "engine.pipelineParallel", "engine.nodes"}
NO_EFFECT = {"gateway.auth.allowAnonymous": "lifts a refusal: tested there"}


def _scenario(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    prefix = max((p for p in SCENARIO if name == p or name.startswith(f"{p}.") or not p), key=len)
    matrix, more = SCENARIO[prefix]
    files, sets = MATRIX[matrix]
    return files, (*sets, "engineToken.value=0123456789abcdef", *more) if matrix != "secrets" else (*sets, *more)


def _now(name: str, files: tuple[str, ...], sets: tuple[str, ...]) -> Any:
    """The value in the scenario: the chart's default under its files (sets are few and named in CHANGE where they matter)."""
    import yaml

    value: Any = ENTRIES[name].default
    for file in files:
        node: Any = yaml.safe_load((CHART / file).read_text(encoding="utf-8"))
        for part in name.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        value = node if node is not None else value
    for text in sets:
        key = text.partition(":=" if ":=" in text else "=")[0]
        if key == name:
            value = json.loads(set_arguments((text,))[1].partition("=")[2])
    return value


def _other(name: str, now: Any) -> Any:
    if name in CHANGE:
        return CHANGE[name]
    schema = ENTRIES[name].schema
    if "enum" in schema:
        return next(v for v in schema["enum"] if v not in (now, ""))
    match now:
        case bool():
            return not now
        case int() | float():
            return now + 1
        case str() if re.fullmatch(r"\d+(Gi|Mi|Ti)", now):
            return "7Gi"
        case str() if name.endswith("digest"):
            return "sha256:" + "b" * 64
        case str() if name.endswith("Path"):
            return "/other"
        case str() | None:
            return "other" if "integer" not in schema.get("type", []) else 7
        case list() if "integer" in str(schema):
            return [*now, 8443]
        case list() if schema.get("items", {}).get("type") == "string":
            return [*now, "other"]
        case list():
            return [*now, {"name": "other", "value": "x"}]
        case dict():
            return {**now, "other": "x"}
    raise AssertionError(f"say in CHANGE how to change {name}")


@pytest.mark.parametrize("name", [e.name for e in LEAVES if e.name not in NO_EFFECT])
def test_value_has_an_effect(name: str) -> None:
    files, sets = _scenario(name)
    together = TOGETHER.get(name, ())
    other = _other(name, _now(name, files, sets))
    assert other != _now(name, files, sets)
    if name == "engineToken.existingSecret":
        sets = tuple(s for s in sets if not s.startswith("engineToken.value"))
    before = render(*sets, *(() if name in ALONE_BEFORE else together), files=files)
    after = render(*sets, *together, f"{name}:={json.dumps(other)}", files=files)
    assert after.objects != before.objects, f"{name}: {other!r} changes nothing"


def _read_by_templates() -> set[str]:
    """Whole paths from .Values, through the local names that templates give to parts of it."""
    out = set()
    for path in (CHART / "templates").rglob("*"):
        if path.suffix not in (".yaml", ".tpl", ".txt"):
            continue
        text = path.read_text(encoding="utf-8")
        names = {"$v": ""} if "$v := .Values -" in text else {}
        for local, target in re.findall(r"(\$\w+)\s*:=\s*(?:\$root|\.root|\$)?\.Values\.([\w.]+)", text):
            names[local] = target
        out |= set(re.findall(r"(?:\$root|\.root|\$)?\.Values\.([A-Za-z]\w*(?:\.\w+)*)", text))
        for local, target in names.items():
            found = re.findall(re.escape(local) + r"\.([A-Za-z]\w*(?:\.\w+)*)", text)
            out |= {f"{target}.{f}".strip(".") for f in found}
    return out


def test_templates_read_only_values_that_exist() -> None:
    free = {e.name for e in LEAVES if isinstance(e.default, dict)}
    unknown = {p for p in _read_by_templates() if p not in ENTRIES and not any(p.startswith(f"{f}.") for f in free)}
    assert not unknown
    assert len(_read_by_templates()) > 100

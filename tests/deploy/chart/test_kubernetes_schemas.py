"""Every object of the matrix against the schemas of two Kubernetes versions, strictly (unknown fields are errors).

Custom resources are checked by a real API server with their CRDs: tests/deploy/apiserver.sh."""

from __future__ import annotations

import json
from functools import lru_cache

import pytest

from tests.deploy.chart.matrix import MATRIX, rendered
from tests.deploy.chart.rendering import Object

CUSTOM = {
    "ServiceMonitor",
    "PodMonitor",
    "PrometheusRule",
    "HTTPRoute",
    "InferencePool",
    "ScaledObject",
    "LeaderWorkerSet",
}


@lru_cache(maxsize=4096)
def _validate(text: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def _without_changes(o: Object) -> str:
    return json.dumps(o, sort_keys=True)


@pytest.mark.parametrize("version", ["1.35", "1.37"])
@pytest.mark.parametrize("name", MATRIX)
def test_every_object_fits_the_schema(name: str, version: str) -> None:
    objects = [o for o in rendered(name).objects if o["kind"] not in CUSTOM]
    assert len(objects) >= 4
    for o in objects:
        _validate(_without_changes(o), version)


@pytest.mark.parametrize("version", ["1.35", "1.37"])
def test_an_engine_pod_inside_a_leaderworkerset_fits_too(version: str) -> None:
    template = rendered("h100x8").one("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        pod = {"apiVersion": "v1", "kind": "Pod", **json.loads(json.dumps(template[part]))}
        pod["metadata"]["name"] = "engine-0"
        _validate(_without_changes(pod), version)


def test_the_check_is_strict() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    service = json.loads(_without_changes(rendered("cpu-demo").one("Service", "gateway")))
    service["spec"]["selektor"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, "1.37", strict=True)

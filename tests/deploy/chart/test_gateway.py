"""The gateway's objects: configuration that the gateway itself accepts, probes, drain, scaling, secrets."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from gateway.config import load
from tests.deploy.chart.matrix import CLAIM, DEMO, H200, KEYS, MATRIX, rendered
from tests.deploy.chart.rendering import container, pod_of, render


def _config(name: str) -> str:
    return rendered(name).one("ConfigMap", "-gateway")["data"]["catalejo.yaml"]


@pytest.mark.parametrize("name", MATRIX)
def test_the_gateway_accepts_its_configuration(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "catalejo.yaml"
    file.write_text(_config(name), encoding="utf-8")
    monkeypatch.setenv("CATALEJO_ENGINE_TOKEN", "0123456789abcdef")
    settings = load(file)
    assert settings.host == "0.0.0.0" and settings.port == 8000
    assert settings.engines or settings.discovery.source != "static", "a gateway without an engine"
    drain = container(rendered(name).one("Deployment", "-gateway"))["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod_of(rendered(name).one("Deployment", "-gateway"))["terminationGracePeriodSeconds"]
    assert drain + settings.shutdown_grace_s < grace


def test_each_engine_has_a_name_and_an_address() -> None:
    config = _config("three-engines")
    for i in range(3):
        assert f"name: m3-catalejo-engine-{i}\n" in config
        assert f"http://m3-catalejo-engine-{i}.m3-catalejo-engine.serving.svc:30000" in config
    service = rendered("three-engines").one("Service", "-engine")
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert rendered("three-engines").one("StatefulSet")["spec"]["serviceName"] == service["metadata"]["name"]


def test_engines_that_are_found_are_those_that_serve(tmp_path: Path) -> None:
    """Workers of a group serve no HTTP, and an engine that is not ready is not in rotation."""
    for name, source in (("found-by-dns", "dns"), ("found-by-slices", "endpointslices")):
        out = rendered(name)
        file = tmp_path / "c.yaml"
        file.write_text(_config(name), encoding="utf-8")
        settings = load(file)
        assert settings.discovery.source == source
        service = out.one("Service", "-engine-members")
        assert service["spec"]["clusterIP"] == "None" and "publishNotReadyAddresses" not in service["spec"]
        assert service["spec"]["selector"]["app.kubernetes.io/component"] == "engine"
        [port] = service["spec"]["ports"]
        if source == "dns":
            assert settings.discovery.dns is not None and not settings.engines
            assert settings.discovery.dns.name == f"{service['metadata']['name']}.serving.svc"
            assert settings.discovery.dns.port == port["port"]
        else:
            assert settings.discovery.endpointslices is not None
            assert settings.discovery.endpointslices.service == service["metadata"]["name"]
            assert settings.discovery.endpointslices.port == port["name"]
            assert [e.name for e in settings.engines] == ["far"]
    assert not [s for s in rendered("h200x8").all("Service") if s["metadata"]["name"].endswith("-members")]


def test_more_engines_that_are_found_replace_no_gateway() -> None:
    def checksum(replicas: int) -> str:
        out = render(CLAIM, "gateway.discovery.source=dns", f"engine.replicas={replicas}", files=H200)
        annotations = out.one("Deployment", "-gateway")["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/config"])

    assert checksum(1) == checksum(5)


def test_settings_of_the_operator_win_and_wrong_ones_name_the_key(tmp_path: Path) -> None:
    out = render("gateway.config.routing.policy=least_load", "gateway.config.media.cache_bytes=0")
    file = tmp_path / "c.yaml"
    file.write_text(out.one("ConfigMap", "-gateway")["data"]["catalejo.yaml"], encoding="utf-8")
    settings = load(file)
    assert settings.routing.policy == "least_load"
    assert settings.media.cache_bytes == 0  # zero is not "unset"
    assert settings.media.max_bytes_in_flight == 134217728  # of the values file


def test_keys_reach_the_gateway_as_it_reads_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = rendered("keys").one("Secret", "-keys")["data"]
    file = tmp_path / "c.yaml"
    file.write_text(_config("keys"), encoding="utf-8")
    monkeypatch.setenv("CATALEJO_ADMISSION__API_KEYS", base64.b64decode(secret["api-keys"]).decode())
    keys = [k.get_secret_value() for k in load(file).admission.api_keys]
    assert keys == ["0123456789abcdef-first", "0123456789abcdef-second"]
    env = {
        e["name"]: e["valueFrom"]["secretKeyRef"]
        for e in container(rendered("keys").one("Deployment", "-gateway"))["env"]
    }
    assert env["CATALEJO_ADMISSION__API_KEYS"] == {"name": "m3-catalejo-gateway-keys", "key": "api-keys"}
    assert "0123456789abcdef" not in json.dumps([o for o in rendered("keys").objects if o["kind"] != "Secret"])


def test_secrets_by_reference_make_no_secret() -> None:
    out = rendered("secrets")
    assert out.all("Secret") == []
    env = {
        e["name"]: e["valueFrom"]["secretKeyRef"]["name"] for e in container(out.one("Deployment", "-gateway"))["env"]
    }
    assert env == {
        "CATALEJO_ENGINE_TOKEN": "token",
        "CATALEJO_ADMISSION__API_KEYS": "keys",
        "CATALEJO_ADMISSION__TENANTS": "tenants",
    }


def test_new_configuration_or_keys_replace_the_pods_and_nothing_else_does() -> None:
    def sums(*sets: str) -> dict[str, str]:
        pod = render(CLAIM, *sets, files=H200).one("Deployment", "-gateway")["spec"]["template"]["metadata"]
        return {k: v for k, v in pod["annotations"].items() if k.startswith("checksum/")}

    base = sums()
    assert sums("gateway.service.annotations.a=b") == base
    assert sums("gateway.config.api.max_n=2")["checksum/config"] != base["checksum/config"]
    assert sums("engine.replicas=2")["checksum/config"] != base["checksum/config"]
    assert sums(KEYS)["checksum/keys"] != base["checksum/keys"]


def test_probes_tell_the_truth() -> None:
    c = container(rendered("h200x8").one("Deployment", "-gateway"))
    assert c["livenessProbe"]["httpGet"]["path"] == "/health"  # an engine that is lost restarts no gateway
    assert c["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert c["startupProbe"]["periodSeconds"] * c["startupProbe"]["failureThreshold"] >= 300
    assert not any("initialDelaySeconds" in c[p] for p in ("livenessProbe", "readinessProbe", "startupProbe"))


def test_autoscaling_owns_the_replicas() -> None:
    assert rendered("h200x8").one("Deployment", "-gateway")["spec"]["replicas"] == 3
    for name, kind in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        assert "replicas" not in rendered(name).one("Deployment", "-gateway")["spec"]
        assert rendered(name).one(kind)["spec"]["scaleTargetRef"]["name"] == "m3-catalejo-gateway"
    assert render("gateway.replicas=0").one("Deployment", "-gateway")["spec"]["replicas"] == 0


def test_keda_asks_for_queue_in_flight_overhead_and_first_token() -> None:
    triggers = {t.get("name", t["type"]): t for t in rendered("keda").one("ScaledObject")["spec"]["triggers"]}
    assert set(triggers) == {"cpu", "in-flight", "queue", "overhead", "first-token"}
    query = triggers["queue"]["metadata"]["query"]
    assert query == 'sum(catalejo_admission_queue_depth{namespace="serving",pod=~"m3-catalejo-gateway-.*"})'


def test_replicas_spread() -> None:
    pod = pod_of(rendered("h200x8").one("Deployment", "-gateway"))
    assert [c["topologyKey"] for c in pod["topologySpreadConstraints"]] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    term = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]
    assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    out = render('gateway.affinity:={"nodeAffinity":{}}', "gateway.topologySpread.enabled=false", files=DEMO)
    own = pod_of(out.one("Deployment", "-gateway"))
    assert own["affinity"] == {"nodeAffinity": {}} and "topologySpreadConstraints" not in own


def test_selectors_match_exactly_their_own_pods() -> None:
    out = rendered("closed")
    labels = {
        "gateway": out.one("Deployment", "-gateway")["spec"]["template"]["metadata"]["labels"],
        "engine": out.one("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["labels"],
    }
    monitor = rendered("one-port").one("ServiceMonitor")
    for o in (out.one("Service", "-gateway"), out.one("PodDisruptionBudget", "-gateway"), monitor):
        selector = o["spec"]["selector"].get("matchLabels", o["spec"]["selector"])
        assert selector.items() <= labels["gateway"].items()
        assert not selector.items() <= labels["engine"].items()

"""What the chart writes for ports, TLS, processes, Redis, ledger and traces, as the gateway itself reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings, load
from tests.deploy.chart.matrix import KEYS, rendered
from tests.deploy.chart.rendering import Object, container, pod_of, render

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def settings_of(out: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """As in the pod `m3-0`: the file, and the environment with its secrets."""
    secrets = {"engine-token": "0" * 16, "redis": "sesame", "otel": '{"x-key": "v"}', "-keys": '["0123456789abcdef"]'}
    for e in container(out.one("Deployment", "-gateway"))["env"]:
        value = e.get("value", "").replace("$(POD_NAME)", "m3-0")
        if ref := e.get("valueFrom", {}).get("secretKeyRef"):
            value = next(v for k, v in secrets.items() if ref["name"].endswith(k))
        if e["name"].startswith("CATALEJO_"):
            monkeypatch.setenv(e["name"], value)
    file = folder / "catalejo.yaml"
    file.write_text(out.one("ConfigMap", "-gateway")["data"]["catalejo.yaml"], encoding="utf-8")
    return load(file)


def test_everything_at_once_is_what_the_gateway_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = rendered("everything")
    s = settings_of(out, tmp_path, monkeypatch)
    assert s.workers == 4
    assert (s.operations.host, s.operations.port, s.operations.debug) == ("0.0.0.0", 9090, True)
    mounts = {m["mountPath"]: m["name"] for m in container(out.one("Deployment", "-gateway"))["volumeMounts"]}
    assert s.tls.certificate and s.tls.key and s.admission.redis_ca_file
    assert mounts[str(s.tls.certificate.parent)] == mounts[str(s.tls.key.parent)] == "tls"
    assert mounts[str(s.admission.redis_ca_file.parent)] == "redis-ca"
    assert s.admission.redis_url and s.admission.redis_url.get_secret_value() == "rediss://redis.example.org/0"
    assert s.admission.redis_password and s.admission.redis_password.get_secret_value() == "sesame"
    assert s.admission.redis_fail_open is False, "gateway.config.admission stays beside what the chart writes"
    assert s.admission.has_keys and s.admission.protect_metrics
    ledger, tracing = s.observability.ledger, s.observability.tracing
    assert str(ledger.path) == "/var/lib/catalejo/m3-0/usage.sqlite" and mounts["/var/lib/catalejo"] == "ledger"
    assert str(ledger.prices["MiniMax-M3"].cached_input) == "0.03" and float(ledger.prices["MiniMax-M3"].image) == 1e-7
    assert str(tracing.endpoint) == "http://otel-collector.monitoring.svc:4318/" and tracing.sample_ratio == 0.1
    assert tracing.headers["x-key"].get_secret_value() == "v"


def test_each_pod_has_a_ledger_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = rendered("ledger-of-the-pod")
    s = settings_of(out, tmp_path, monkeypatch)
    assert (s.observability.ledger.format, str(s.observability.ledger.path)) == ("jsonl", "/var/lib/catalejo/m3-0")
    volumes = {v["name"]: v for v in pod_of(out.one("Deployment", "-gateway"))["volumes"]}
    assert volumes["ledger"]["emptyDir"] == {"sizeLimit": "1Gi"}
    kept = {v["name"]: v for v in pod_of(rendered("everything").one("Deployment", "-gateway"))["volumes"]}
    assert kept["ledger"]["persistentVolumeClaim"] == {"claimName": "usage"}


def _asked(out: Any) -> list[Object]:
    c = container(out.one("Deployment", "-gateway"))
    return [{k: v for k, v in c[p]["httpGet"].items() if k != "path"} for p in PROBES]


def test_probes_and_scrapes_ask_the_operators_port_and_the_main_one_without_it() -> None:
    for name in ("cpu-demo", "everything"):
        out = rendered(name)
        assert _asked(out) == [{"port": "operations"}] * 3, "plain HTTP, TLS or not"
        service = out.one("Service", "-gateway-operations")["spec"]
        assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
        assert service["ports"][0]["port"] == 9090
    assert _asked(rendered("one-port")) == [{"port": "http", "scheme": "HTTPS"}] * 3
    assert _asked(render("gateway.operations.enabled=false")) == [{"port": "http"}] * 3
    assert not [s for s in rendered("one-port").all("Service") if "operations" in s["metadata"]["name"]]


def test_the_monitor_finds_one_service_whose_port_serves_metrics() -> None:
    for name, port in (("everything", "operations"), ("three-engines", "operations"), ("one-port", "http")):
        out = rendered(name)
        monitor = out.one("ServiceMonitor")["spec"]
        wanted = monitor["selector"]["matchLabels"].items()
        [service] = [s for s in out.all("Service") if wanted <= s["metadata"]["labels"].items()]
        [endpoint] = monitor["endpoints"]
        assert endpoint["port"] == port and port in [p["name"] for p in service["spec"]["ports"]]
        pod = out.one("Deployment", "-gateway")["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= pod.items()
        named = {p["name"] for p in container(out.one("Deployment", "-gateway"))["ports"]}
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= named
    endpoint = rendered("one-port").one("ServiceMonitor")["spec"]["endpoints"][0]
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"] == {"credentials": {"name": "scraper", "key": "api-key"}}


def test_clients_inside_the_cluster_speak_tls() -> None:
    env = {e["name"]: e.get("value") for e in container(rendered("everything").one("Pod"))["env"]}
    assert env["URL"] == "https://m3-catalejo-gateway.serving.svc:443"
    assert env["CERTIFICATE"] == "/etc/catalejo-tls/tls.crt"
    plain = {e["name"]: e.get("value") for e in container(rendered("cpu-demo").one("Pod"))["env"]}
    assert plain["URL"].startswith("http://") and "CERTIFICATE" not in plain
    assert rendered("everything").one("Service", "-gateway")["spec"]["ports"][0]["appProtocol"] == "https"
    job = render("loadTest.enabled=true", "gateway.tls.secretName=tls", "loadTest.url=https://m3.example.org").one(
        "Job"
    )
    assert "--url=https://m3.example.org" in container(job)["args"]


def test_no_secret_lies_in_the_configuration() -> None:
    out = render(KEYS, "redis.url=rediss://r", "redis.passwordSecret.name=p", "gateway.tls.secretName=t")
    assert "password" not in json.dumps(out.one("ConfigMap", "-gateway"))

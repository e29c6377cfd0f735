"""Pods are restricted, nobody has rights in the cluster, and policies admit who should be admitted."""

from __future__ import annotations

import ipaddress
import json

import pytest

from tests.deploy.chart.matrix import MATRIX, SCRAPER, rendered
from tests.deploy.chart.rendering import Object, pod_of

WORKLOADS = {"Deployment", "StatefulSet", "LeaderWorkerSet", "Job", "Pod"}


def _pods(name: str) -> list[Object]:
    out = []
    for o in rendered(name).objects:
        if o["kind"] in WORKLOADS:
            out.append(pod_of(o))
        if o["kind"] == "LeaderWorkerSet":
            out.append(o["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"])
    return out


@pytest.mark.parametrize("name", MATRIX)
def test_every_container_is_restricted(name: str) -> None:
    pods = _pods(name)
    assert pods
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {
            "type": "RuntimeDefault"
        }
        for c in [*pod["containers"], *pod.get("initContainers", [])]:
            context = c["securityContext"]
            assert context["readOnlyRootFilesystem"] is True and context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert c["resources"]["limits"]["memory"]


RIGHTS = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize("name", MATRIX)
def test_nobody_has_rights_in_the_cluster_that_are_not_needed(name: str) -> None:
    wanted = {"Role", "RoleBinding"} if name == "found-by-slices" else set()
    assert {o["kind"] for o in rendered(name).objects} & RIGHTS == wanted
    with_token = [p for p in _pods(name) if any("projected" in v for v in p.get("volumes", []))]
    assert len(with_token) == (1 if wanted else 0)


def test_the_role_reads_endpoint_slices_of_its_namespace_and_gateways_alone_have_the_token() -> None:
    out = rendered("found-by-slices")
    assert out.one("Role")["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    binding = out.one("RoleBinding")
    assert binding["roleRef"]["name"] == out.one("Role")["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": out.one("ServiceAccount")["metadata"]["name"], "namespace": "serving"}
    ]
    pod = pod_of(out.one("Deployment", "-gateway"))
    assert {
        "name": "api-access",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": True,
    } in pod["containers"][0]["volumeMounts"]
    egress = out.one("NetworkPolicy", "-gateway")["spec"]["egress"]
    [api] = [r for r in egress if {"port": 6443} in r["ports"]]
    assert api["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert not [
        r for r in rendered("h200x8").one("NetworkPolicy", "-gateway")["spec"]["egress"] if {"port": 6443} in r["ports"]
    ]


def test_engines_admit_gateways_only() -> None:
    policy = rendered("h200x8").one("NetworkPolicy", "-engine")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    [rule] = policy["ingress"]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert [p["port"] for e in policy["egress"] for p in e["ports"]] == [53, 53]


def test_pods_of_one_engine_talk_among_themselves() -> None:
    policy = rendered("h100x8").one("NetworkPolicy", "-engine")["spec"]
    roles = [p["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for p in policy["ingress"][1]["from"]]
    assert roles == ["engine", "engine-worker"] and policy["egress"][1]["to"] == policy["ingress"][1]["from"]


@pytest.mark.parametrize(
    "address",
    [
        "10.96.0.1",
        "172.20.1.1",
        "192.168.4.4",
        "169.254.169.254",
        "100.64.0.1",
        "127.0.0.1",
        "fd00::1",
        "fe80::1",
        "::1",
    ],
)
def test_media_never_come_from_the_cluster(address: str) -> None:
    ip = ipaddress.ip_address(address)
    blocks = [
        t["ipBlock"]
        for r in rendered("h200x8").one("NetworkPolicy", "-gateway")["spec"]["egress"]
        for t in r.get("to", [])
        if "ipBlock" in t
    ]
    assert blocks
    for block in blocks:
        inside = ip in ipaddress.ip_network(block["cidr"])
        assert not inside or any(ip in ipaddress.ip_network(e) for e in block["except"])


def test_exceptions_lie_within_their_block() -> None:
    for rule in rendered("h200x8").one("NetworkPolicy", "-gateway")["spec"]["egress"]:
        for block in (t["ipBlock"] for t in rule.get("to", []) if "ipBlock" in t):
            for network in block["except"]:
                assert ipaddress.ip_network(network).subnet_of(ipaddress.ip_network(block["cidr"]))


def test_a_closed_gateway_still_admits_prometheus_and_the_charts_own_test() -> None:
    rules = rendered("closed").one("NetworkPolicy", "-gateway")["spec"]["ingress"]
    assert [r["ports"] for r in rules] == [[{"port": "http"}], [{"port": "http"}], [{"port": "operations"}]]
    assert [sorted(r["from"][0]) for r in rules] == [["namespaceSelector"], ["podSelector"], ["namespaceSelector"]]
    assert rules[2]["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    test = rendered("closed").one("Pod")
    assert rules[1]["from"][0]["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items()


@pytest.mark.parametrize("name", MATRIX)
def test_the_port_without_keys_is_reached_by_named_scrapers_only(name: str) -> None:
    out = rendered(name)
    ways = [o for o in out.objects if o["kind"] in {"Ingress", "HTTPRoute", "InferencePool"}]
    ways += [s for s in out.all("Service") if s["metadata"]["name"].endswith("-gateway")]
    assert "operations" not in json.dumps(ways) and "9090" not in json.dumps(ways)
    for policy in [p for p in out.all("NetworkPolicy") if p["metadata"]["name"].endswith("-gateway")]:
        rules = [r for r in policy["spec"]["ingress"] if {"port": "operations"} in r["ports"]]
        assert all("ports" in r for r in policy["spec"]["ingress"]), "a rule without ports admits to every port"
        if name in ("closed", "everything", "three-engines"):
            [rule] = rules
            assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
        else:
            assert not rules


def test_a_scraper_of_the_only_port_is_admitted_there() -> None:
    rules = rendered("one-port").one("NetworkPolicy", "-gateway")["spec"]["ingress"]
    assert rules[2] == {"ports": [{"port": "http"}], "from": [{"namespaceSelector": {}}]}
    named = rendered("one-port", SCRAPER).one("NetworkPolicy", "-gateway")["spec"]["ingress"]
    assert named[2]["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]


def test_the_way_to_redis_and_the_collector_is_open_and_no_wider() -> None:
    def egress(name: str, *more: str) -> list[Object]:
        return rendered(name, *more).one("NetworkPolicy", "-gateway")["spec"]["egress"]

    assert {"ports": [{"port": 6380}], "to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]} in egress("closed")
    rules = egress("everything")
    assert {"ports": [{"port": 6379}]} in rules, "Redis' own port, when the URL names none"
    to = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert {"ports": [{"port": 4318}], "to": to} in rules
    without_port = egress("cpu-demo", "gateway.tracing.endpoint=https://otel.example.org/otlp")
    assert {"ports": [{"port": 443}]} in without_port
    assert {"ports": [{"port": 80}]} in egress("cpu-demo", "gateway.tracing.endpoint=http://otel")
    assert len(egress("cpu-demo")) == 3, "names, engines, media: nothing else by default"


def test_secrets_of_features_stay_secrets() -> None:
    out = rendered("everything")
    pod = pod_of(out.one("Deployment", "-gateway"))
    env = {e["name"]: e.get("valueFrom", {}).get("secretKeyRef") for e in pod["containers"][0]["env"]}
    assert env["CATALEJO_ADMISSION__REDIS_PASSWORD"] == {"name": "redis", "key": "password"}
    assert env["CATALEJO_OBSERVABILITY__TRACING__HEADERS"] == {"name": "otel", "key": "headers"}
    mounted = {v["name"]: v["secret"] for v in pod["volumes"] if "secret" in v}
    assert mounted["tls"] == {
        "secretName": "tls",
        "defaultMode": 0o440,
        "items": [{"key": "tls.crt", "path": "tls.crt"}, {"key": "tls.key", "path": "tls.key"}],
    }
    assert mounted["redis-ca"] == {"secretName": "redis-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    [test] = [v["secret"] for v in pod_of(out.one("Pod"))["volumes"]]
    assert test == {"secretName": "tls", "items": [{"key": "tls.crt", "path": "tls.crt"}]}, "not the private key"


def test_the_token_is_generated_shared_and_not_guessable() -> None:
    import base64

    out = rendered("cpu-demo")
    token = base64.b64decode(out.one("Secret", "-engine-token")["data"]["token"]).decode()
    assert len(token) == 40 and len(set(token)) > 10
    for workload in (out.one("Deployment", "-gateway"), out.one("StatefulSet", "-engine")):
        env = {e["name"]: e for e in pod_of(workload)["containers"][0]["env"]}
        assert env["CATALEJO_ENGINE_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "m3-catalejo-engine-token"
    assert token not in json.dumps([o for o in out.objects if o["kind"] != "Secret"])

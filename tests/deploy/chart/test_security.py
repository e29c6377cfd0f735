"""Pods are restricted, nobody has rights in the cluster, and policies admit who should be admitted."""

from __future__ import annotations

import ipaddress
import json

import pytest

from tests.deploy.chart.matrix import MATRIX, rendered
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
    assert [sorted(r["from"][0]) for r in rules] == [["namespaceSelector"], ["podSelector"], ["namespaceSelector"]]
    assert rules[2]["from"][0]["namespaceSelector"]["matchLabels"] == {"name": "monitoring"}
    test = rendered("closed").one("Pod")
    assert rules[1]["from"][0]["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items()


def test_the_token_is_generated_shared_and_not_guessable() -> None:
    import base64

    out = rendered("cpu-demo")
    token = base64.b64decode(out.one("Secret", "-engine-token")["data"]["token"]).decode()
    assert len(token) == 40 and len(set(token)) > 10
    for workload in (out.one("Deployment", "-gateway"), out.one("StatefulSet", "-engine")):
        env = {e["name"]: e for e in pod_of(workload)["containers"][0]["env"]}
        assert env["CATALEJO_ENGINE_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "m3-catalejo-engine-token"
    assert token not in json.dumps([o for o in out.objects if o["kind"] != "Secret"])

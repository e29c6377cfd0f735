"""The chart installed, upgraded, rolled back and removed on a real control plane, under Pod Security `restricted`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.deploy.apiserver.cluster import Cluster, CommandError
from tests.deploy.chart.matrix import MATRIX, WATCHED, rendered
from tests.deploy.chart.rendering import pod_of, set_arguments
from tests.deploy.metric_names import CHART

pytestmark = pytest.mark.timeout(900)

DEMO = ("-f", str(CHART / "values-cpu-demo.yaml"), *set_arguments((*WATCHED, "gateway.replicas=2")))


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> str:
    ns = cluster.namespace("serving")
    out = cluster.helm("install", "m3", str(CHART), "-n", ns, *DEMO)
    assert "would violate PodSecurity" not in out
    return ns


def _pods(cluster: Cluster, ns: str, component: str) -> list[dict]:
    return cluster.get("pods", "-n", ns, "-l", f"app.kubernetes.io/component={component}")["items"]


def test_controllers_create_the_pods_under_restricted(cluster: Cluster, release: str) -> None:
    cluster.wait(
        lambda: len(_pods(cluster, release, "gateway")) == 2 and len(_pods(cluster, release, "engine")) == 1, "pods"
    )
    violations = [e for e in cluster.get("events", "-n", release)["items"] if e["reason"].startswith("FailedCreate")]
    assert not violations


def test_every_field_that_the_chart_sends_is_kept(cluster: Cluster, release: str) -> None:
    """A field that the server does not know is dropped without a word: what is stored must contain what was sent."""

    def within(sent: object, stored: object, path: str) -> list[str]:
        if isinstance(sent, dict):
            if not isinstance(stored, dict):
                return [path]
            return [p for k, v in sent.items() for p in within(v, stored.get(k), f"{path}.{k}")]
        if isinstance(sent, list):
            if not isinstance(stored, list) or len(stored) < len(sent):
                return [path]
            return [p for i, v in enumerate(sent) for p in within(v, stored[i], f"{path}[{i}]")]
        return [] if sent == stored or str(sent) == str(stored) or isinstance(sent, int | float) else [path]

    lost = []
    for sent in json.loads(json.dumps(list(rendered("cpu-demo").objects))):
        if sent["kind"] in ("Secret", "Pod"):
            continue
        stored = cluster.get(sent["kind"], sent["metadata"]["name"], "-n", release)
        if "spec" in sent:
            lost += within(sent["spec"], stored["spec"], sent["kind"])
    # Quantities come back in their shortest form, and this release has two replicas and more.
    assert [p for p in lost if not any(w in p for w in ("replicas", "resources", "checksum"))] == []


def test_the_service_account_may_do_nothing(cluster: Cluster, release: str) -> None:
    who = f"--as=system:serviceaccount:{release}:m3-catalejo"
    for verb, what in (
        ("get", "secrets"),
        ("list", "pods"),
        ("watch", "endpointslices"),
        ("create", "pods"),
        ("*", "*"),
    ):
        with pytest.raises(CommandError):
            cluster.kubectl("auth", "can-i", verb, what, who, "-n", release)
    for pod in _pods(cluster, release, "gateway"):
        assert not [v for v in pod["spec"]["volumes"] if "projected" in v], "no API token is mounted"


def test_an_upgrade_keeps_the_token_and_replaces_only_what_changed(cluster: Cluster, release: str) -> None:
    def state() -> tuple[str, str, str]:
        token = cluster.get("secret", "m3-catalejo-engine-token", "-n", release)["data"]["token"]
        gateway = cluster.get("deployment", "m3-catalejo-gateway", "-n", release)["spec"]["template"]
        engine = cluster.get("statefulset", "m3-catalejo-engine", "-n", release)["spec"]["template"]
        return token, json.dumps(gateway, sort_keys=True), json.dumps(engine, sort_keys=True)

    first = state()
    cluster.helm("upgrade", "m3", str(CHART), "-n", release, *DEMO)
    assert state() == first, "the same values again change nothing"
    cluster.helm("upgrade", "m3", str(CHART), "-n", release, *DEMO, "--set", "gateway.config.api.max_n=2")
    token, gateway, engine = state()
    assert token == first[0] and gateway != first[1]
    assert engine == first[2], "a gateway setting must not restart engines"
    cluster.helm("rollback", "m3", "1", "-n", release)
    assert state() == first


def test_server_side_apply_finds_no_conflict(cluster: Cluster, release: str) -> None:
    manifest = cluster.helm("get", "manifest", "m3", "-n", release)
    out = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--field-manager=helm", "-n", release, "-f", "-", stdin=manifest
    )
    assert out.count("serverside-applied") >= 12


@pytest.mark.parametrize("name", MATRIX)
def test_the_server_takes_every_object_of(name: str, cluster: Cluster) -> None:
    ns = cluster.namespace(f"try-{name}")
    files, sets = MATRIX[name]
    arguments = [a for f in files for a in ("-f", str(CHART / f))]
    cluster.helm("install", "m3", str(CHART), "-n", ns, "--dry-run=server", *arguments, *set_arguments(sets))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "m3-catalejo"}}
    cluster.kubectl("apply", "-n", ns, "-f", "-", stdin=json.dumps(account))  # a bare pod's account must be there
    for sent in rendered(name).objects:
        o = json.loads(json.dumps(sent))
        if o["kind"] == "ServiceAccount":
            continue
        o["metadata"]["namespace"] = ns
        cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-n", ns, "-f", "-", stdin=json.dumps(o))


@pytest.mark.parametrize("name", MATRIX)
def test_pods_pass_restricted_admission(name: str, cluster: Cluster) -> None:
    """Pod templates as bare pods, so that admission speaks at once. hostPath is the one source that `restricted` forbids."""
    ns = cluster.namespace(f"pods-{name}")
    templates = []
    for o in rendered(name).objects:
        if o["kind"] in ("Deployment", "StatefulSet", "Job", "Pod", "LeaderWorkerSet"):
            templates.append(pod_of(o))
        if o["kind"] == "LeaderWorkerSet":
            templates.append(o["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"])
    assert templates
    for i, spec in enumerate(templates):
        spec = {**json.loads(json.dumps(spec)), "serviceAccountName": "default"}
        cluster.wait(lambda: cluster.get("serviceaccount", "default", "-n", ns), "default service account")
        pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{i}"}, "spec": spec})
        create = ("create", "--dry-run=server", "--validate=strict", "-n", ns, "-f", "-")
        if any("hostPath" in v for v in spec.get("volumes", [])):
            with pytest.raises(CommandError, match="hostPath"):
                cluster.kubectl(*create, stdin=pod)
        else:
            cluster.kubectl(*create, stdin=pod)


def test_removal_leaves_downloaded_weights(cluster: Cluster) -> None:
    ns = cluster.namespace("leaving")
    _, sets = MATRIX["download"]
    cluster.helm("install", "m3", str(CHART), "-n", ns, *set_arguments(sets))
    cluster.helm("uninstall", "m3", "-n", ns)
    assert [p["metadata"]["name"] for p in cluster.get("pvc", "-n", ns)["items"]] == ["m3-catalejo-weights"]
    assert cluster.get("deployments", "-n", ns)["items"] == []


def test_the_log_of_the_server_names_no_dropped_request(cluster: Cluster, release: str) -> None:
    assert "panic" not in (Path(cluster.folder) / "kube-apiserver.log").read_text(errors="replace").lower()

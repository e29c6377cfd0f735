"""The engines' objects: the command that an engine understands, GPUs, memory, caches, rollouts, weights."""

from __future__ import annotations

import json

import pytest

from engine.local.cli import parse
from tests.deploy.chart.matrix import CLAIM, DEMO, H200, MATRIX, rendered
from tests.deploy.chart.rendering import Object, Render, container, pod_of, render

KINDS = ("StatefulSet", "Deployment", "LeaderWorkerSet")


def _engine(out: Render) -> Object:
    found = [o for o in out.objects if o["kind"] in KINDS and o["metadata"]["name"].endswith("-engine")]
    assert len(found) == 1
    return found[0]


WITH_ENGINE = [n for n in MATRIX if n != "external-only"]


@pytest.mark.parametrize("name", WITH_ENGINE)
def test_room_to_start_to_write_and_to_stop(name: str) -> None:
    workload = _engine(rendered(name))
    c, pod = container(workload), pod_of(workload)
    assert c["startupProbe"]["periodSeconds"] * c["startupProbe"]["failureThreshold"] >= (
        300 if MATRIX[name][0] == DEMO else 7200
    )
    mounts = {m["mountPath"]: m["name"] for m in c["volumeMounts"]}
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    env = {e["name"]: e.get("value", "") for e in c["env"]}
    for variable in ("HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"):
        assert env[variable].startswith("/cache/") and "/cache" in mounts
    assert env["USER"]  # the numeric user has no name of its own
    assert "emptyDir" in volumes[mounts["/tmp"]]
    assert all(v.get("readOnly") for v in c["volumeMounts"] if v["mountPath"] == "/weights")
    assert c["lifecycle"]["preStop"]["sleep"]["seconds"] < pod["terminationGracePeriodSeconds"]


def test_the_local_engine_understands_its_arguments() -> None:
    args = container(_engine(rendered("cpu-demo")))["args"]
    assert args[:3] == ["engine", "--backend=local", "--model=/opt/catalejo/checkpoint"]
    options = parse(args[2:])
    assert (options.host, options.port, options.kv_bytes, options.grace_s) == ("0.0.0.0", 30000, 268435456, 15.0)


def test_sglang_gets_its_flags() -> None:
    args = container(_engine(rendered("h200x8")))["args"]
    assert "--tp-size=8" in args and "--context-length=262144" in args and "--page-size=128" in args
    assert "--mem-fraction-static=0.92" in args
    assert not any(a.startswith(("--nnodes", "--pp-size")) for a in args)
    more = container(_engine(render(CLAIM, "engine.flags.a=true", "engine.flags.b=false", "engine.flags.page-size=null",
                                    'engine.flags.c:="x y"', 'engine.extraArgs:=["--d","e f"]', files=H200)))["args"]  # fmt: skip
    assert "--a" in more and "--c=x y" in more and more[-2:] == ["--d", "e f"]
    assert not any(a == "--b" or a.startswith(("--b=", "--page-size")) for a in more)


def test_large_numbers_stay_whole() -> None:
    args = container(_engine(render("engine.flags.kv-bytes:=1073741824")))["args"]
    assert "--kv-bytes=1073741824" in args


def test_two_nodes_are_one_engine() -> None:
    group = rendered("h100x8").one("LeaderWorkerSet")["spec"]
    leader = group["leaderWorkerTemplate"]["leaderTemplate"]
    worker = group["leaderWorkerTemplate"]["workerTemplate"]
    assert group["leaderWorkerTemplate"]["size"] == 2
    assert group["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    args = leader["spec"]["containers"][0]["args"]
    assert {
        "--nnodes=2",
        "--pp-size=2",
        "--node-rank=$(LWS_WORKER_INDEX)",
        "--dist-init-addr=$(LWS_LEADER_ADDRESS):20000",
    } <= set(args)
    assert worker["spec"]["containers"][0]["args"] == args
    assert "readinessProbe" not in worker["spec"]["containers"][0]
    # Gateways and the PodMonitor must find leaders only.
    assert leader["metadata"]["labels"]["app.kubernetes.io/component"] == "engine"
    assert worker["metadata"]["labels"]["app.kubernetes.io/component"] == "engine-worker"


def test_no_surge_without_spare_gpus() -> None:
    for name, path in (
        ("deployment", ("strategy", "rollingUpdate")),
        ("h100x8", ("rolloutStrategy", "rollingUpdateConfiguration")),
    ):
        spec = _engine(rendered(name))["spec"]
        assert spec[path[0]][path[1]] == {"maxSurge": 0, "maxUnavailable": 1}
    assert _engine(rendered("deployment"))["spec"]["progressDeadlineSeconds"] > 7200


def test_gpus_are_requested_and_limited() -> None:
    resources = container(_engine(render(CLAIM, "engine.extraResources.rdma/ib=8", files=H200)))["resources"]
    for side in ("requests", "limits"):
        assert resources[side]["nvidia.com/gpu"] == 8 and str(resources[side]["rdma/ib"]) == "8"
    assert resources["requests"]["cpu"] == "32"
    assert "nvidia.com/gpu" not in container(_engine(rendered("cpu-demo")))["resources"]["limits"]


@pytest.mark.parametrize(
    ("name", "key", "path"),
    [
        ("h200x8", "persistentVolumeClaim", "/weights"),
        ("host-path", "hostPath", "/weights"),
        ("oci-image", "image", "/weights/m3"),
        ("download", "persistentVolumeClaim", "/weights/main"),
    ],
)
def test_weights_come_from(name: str, key: str, path: str) -> None:
    for workload in (_engine(rendered(name)), rendered(name).one("Deployment", "-gateway")):
        assert key in next(v for v in pod_of(workload)["volumes"] if v["name"] == "weights")
    assert f"--model={path}" in container(_engine(rendered(name)))["args"]
    assert f"model_path: {path}\n" in rendered(name).one("ConfigMap", "-gateway")["data"]["catalejo.yaml"]


def test_the_gateway_may_have_the_checkpoints_small_files_only() -> None:
    volume = next(
        v for v in pod_of(rendered("own-checkpoint").one("Deployment", "-gateway"))["volumes"] if v["name"] == "weights"
    )
    assert volume["image"]["reference"] == "models/m3-tokenizer:1"


def test_the_download_resumes_ends_and_is_waited_for() -> None:
    out = rendered("download")
    job = out.one("Job")
    assert job["spec"]["activeDeadlineSeconds"] == 43200
    env = {e["name"]: e.get("value") for e in container(job)["env"]}
    assert (
        env["HF_HUB_DOWNLOAD_TIMEOUT"] == "60"
        and env["FOLDER"] == "/weights/main"
        and env["HF_ENDPOINT"] == "http://hub"
    )
    assert out.one("PersistentVolumeClaim")["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for workload in (_engine(out), out.one("Deployment", "-gateway")):
        assert pod_of(workload)["initContainers"][0]["command"][-1] == "/weights/main"
    other = render("weights.source=download", "weights.download.revision=v2", files=()).one("Job")
    assert other["metadata"]["name"] != job["metadata"]["name"], "a Job cannot change"


def test_names_of_images() -> None:
    digest = "sha256:" + "a" * 64
    out = render(
        "global.imageRegistry=mirror.example.org/x/", f"images.gateway.digest={digest}", 'images.engine.tag:="2"'
    )
    assert container(out.one("Deployment", "-gateway"))["image"] == f"mirror.example.org/x/catalejo/gateway@{digest}"
    assert container(_engine(out))["image"] == "mirror.example.org/x/catalejo/engine-local:2"
    both = render('images.gateway.tag:="1"', f"images.gateway.digest={digest}", files=DEMO)
    assert container(both.one("Deployment", "-gateway"))["image"] == f"catalejo/gateway:1@{digest}"
    assert container(_engine(rendered("h200x8")))["image"] == "catalejo/engine-sglang:0.1.0"


def test_kv_events_are_published_and_reach_gateways_alone() -> None:
    out = rendered("found-by-dns")
    leader = out.one("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    [flag] = [a for a in leader["containers"][0]["args"] if a.startswith("--kv-events-config=")]
    config = json.loads(flag.partition("=")[2])
    assert config == {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}
    opened = [{"port": 30000}, {"port": 5557, "endPort": 5656}, {"port": 5657, "endPort": 5756}]
    ingress = out.one("NetworkPolicy", "-engine")["spec"]["ingress"]
    [rule] = [r for r in ingress if r.get("ports") == opened]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert opened in [r["ports"] for r in out.one("NetworkPolicy", "-gateway")["spec"]["egress"]]
    assert "kv-events-config" not in json.dumps(rendered("h100x8").one("LeaderWorkerSet"))

"""The gateway's own watcher of EndpointSlices on a real API server, with the rights that the chart gives and no others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.routing.discovery.endpoint_slices import EndpointSliceSource
from gateway.routing.discovery.settings import DiscoverySettings
from gateway.routing.settings import EngineEndpoint
from tests.deploy.apiserver.cluster import Cluster, CommandError
from tests.deploy.chart.rendering import set_arguments
from tests.deploy.metric_names import CHART

pytestmark = pytest.mark.timeout(600)

NAMESPACE, ACCOUNT = "watching", "m3-catalejo"
VALUES = ("-f", str(CHART / "values-cpu-demo.yaml"), *set_arguments(("gateway.discovery.source=endpointslices",)))


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    cluster.namespace(NAMESPACE)
    cluster.helm("install", "m3", str(CHART), "-n", NAMESPACE, *VALUES)
    return cluster


def settings_of(cluster: Cluster, folder: Path, account: str = ACCOUNT) -> DiscoverySettings:
    """As in the gateway's pod: its configuration, and the folder that the kubelet would mount."""
    config = yaml.safe_load(cluster.get("configmap", "m3-catalejo-gateway", "-n", NAMESPACE)["data"]["catalejo.yaml"])
    folder.mkdir()
    cluster.wait(lambda: cluster.get("serviceaccount", account, "-n", NAMESPACE), f"service account {account}")
    (folder / "token").write_text(cluster.kubectl("create", "token", account, "-n", NAMESPACE).strip())
    (folder / "namespace").write_text(NAMESPACE)
    (folder / "ca.crt").write_bytes((cluster.folder / "certs" / "apiserver.crt").read_bytes())
    where = {"credentials": folder, "api_url": f"https://127.0.0.1:{cluster.port}"}
    discovery = config["discovery"]
    return DiscoverySettings(**{**discovery, "endpointslices": {**discovery["endpointslices"], **where}})


class Seen:
    def __init__(self) -> None:
        self.engines: dict[str, str] | None = None
        self.failures = 0

    def publish(self, found: Sequence[EngineEndpoint]) -> None:
        self.engines = {str(e.name): e.url for e in found}

    def failed(self, source: str) -> None:
        self.failures += 1

    async def until(self, wanted: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while self.engines != wanted:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def watching(settings: DiscoverySettings) -> AsyncIterator[Seen]:
    assert settings.endpointslices is not None
    seen = Seen()
    source = EndpointSliceSource(settings.endpointslices, seen.failed)
    task = asyncio.create_task(source.run(seen.publish))
    try:
        yield seen
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def slice_(name: str, service: str, **pods: tuple[str, dict[str, bool]]) -> dict[str, Any]:
    """A slice as its controller writes one; there are no nodes here, so pods have no addresses and it writes none itself."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "a-test"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "engine", "port": 30000, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": pod}}
            for pod, (address, conditions) in pods.items()
        ],
    }


async def apply(cluster: Cluster, *objects: dict[str, Any]) -> None:
    for o in objects:
        await asyncio.to_thread(cluster.kubectl, "apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(o))


async def test_the_watcher_follows_the_service_with_the_accounts_rights(installed: Cluster, tmp_path: Path) -> None:
    settings = settings_of(installed, tmp_path / "account")
    assert settings.endpointslices is not None
    service = settings.endpointslices.service
    assert installed.get("service", service, "-n", NAMESPACE)["spec"]["clusterIP"] == "None"
    ready = {"ready": True, "serving": True, "terminating": False}
    leaving = {"ready": False, "serving": True, "terminating": True}
    await apply(
        installed, slice_("one", service, e0=("10.9.0.1", ready)), slice_("not-ours", "other", x=("10.9.9.9", ready))
    )
    async with watching(settings) as seen:
        await seen.until({"e0": "http://10.9.0.1:30000"})
        await apply(installed, slice_("two", service, e1=("10.9.0.2", ready)))
        await seen.until({"e0": "http://10.9.0.1:30000", "e1": "http://10.9.0.2:30000"})
        await apply(installed, slice_("one", service, e0=("10.9.0.1", leaving)))
        await seen.until({"e1": "http://10.9.0.2:30000"})
        await asyncio.to_thread(installed.kubectl, "delete", "endpointslice", "two", "-n", NAMESPACE)
        await seen.until({})
        assert not seen.failures


async def test_an_account_without_the_role_is_told_what_it_lacks(
    installed: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(settings_of(installed, tmp_path / "account", "default")) as seen:
        async with asyncio.timeout(60):
            while not seen.failures:
                await asyncio.sleep(0.05)
        assert seen.engines is None
    assert "needs list and watch on endpointslices" in caplog.text


def test_the_account_may_read_slices_here_and_nothing_else(installed: Cluster) -> None:
    who = f"--as=system:serviceaccount:{NAMESPACE}:{ACCOUNT}"

    def may(verb: str, what: str, namespace: str = NAMESPACE) -> bool:
        try:
            return installed.kubectl("auth", "can-i", verb, what, who, "-n", namespace).strip() == "yes"
        except CommandError:
            return False

    assert may("list", "endpointslices.discovery.k8s.io") and may("watch", "endpointslices.discovery.k8s.io")
    assert not may("list", "endpointslices.discovery.k8s.io", "default")
    for verb, what in (("delete", "endpointslices.discovery.k8s.io"), ("get", "secrets"), ("list", "pods"), ("*", "*")):
        assert not may(verb, what)

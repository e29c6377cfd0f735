"""Engines from a Service's EndpointSlices: listed once, then watched.

A watch that ends or breaks goes on from the last version seen; one that the server no longer has (410) is listed anew.
While the API server is away the last list holds: engines are known dead or alive by their health checks.
An endpoint counts when it is ready (or does not say) and not terminating; one that terminates finishes its streams.
A Service may have several slices, an endpoint may be in two of them for a moment, and a pod with two address families
is in one slice for each: it is one engine, by its IPv4 address.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import aiohttp

from gateway.routing.discovery.base import Failed, Publish, authority
from gateway.routing.discovery.kube_api import ApiFailure, Gone, KubeApi
from gateway.routing.discovery.settings import EndpointSliceDiscovery
from gateway.routing.settings import EngineEndpoint

log = logging.getLogger("catalejo.discovery")
BACKOFF_S: Final = (0.5, 30.0)
SHORT_WATCH_S: Final = 5.0
"""A watch that brought nothing and ended sooner is waited after, lest a broken server is asked without end."""


class EndpointSliceSource:
    def __init__(
        self, settings: EndpointSliceDiscovery, failed: Failed, backoff_s: tuple[float, float] = BACKOFF_S
    ) -> None:
        """Raises ValueError when this is no pod and the settings do not say where the API is."""
        self._settings = settings
        self._failed = failed
        self._api = KubeApi(settings.api_url, settings.credentials)
        namespace = settings.namespace or _own_namespace(settings.credentials)
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = f"kubernetes.io/service-name={settings.service}"
        self._server_name = f"{settings.service}.{namespace}.svc"
        self._slices: dict[str, dict[str, Any]] = {}
        self._version: str | None = None
        self._last: list[EngineEndpoint] | None = None
        self._backoff_s = backoff_s
        self._failures = 0
        self._told = ""

    async def run(self, publish: Publish) -> None:
        self._version = None
        try:
            while True:
                await self._step(publish)
        finally:
            await self._api.close()

    async def _step(self, publish: Publish) -> None:
        """Lists if need be and watches until the watch ends, then waits if that was no success."""
        began = asyncio.get_running_loop().time()
        heard = False
        try:
            if self._version is None:
                items, self._version = await self._api.list(self._path, self._selector)
                self._slices = {_key(s): s for s in items}
                self._good(publish)
                heard = True
            async for kind, slice_ in self._api.watch(self._path, self._selector, self._version):
                heard = True
                self._take(kind, slice_)
                self._good(publish)
        except Gone:
            self._version = None
            if heard:
                return
        except (ApiFailure, aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            self._bad(e)
        else:
            if heard or asyncio.get_running_loop().time() - began >= SHORT_WATCH_S:
                return
        first, most = self._backoff_s
        self._failures += 1
        await asyncio.sleep(min(most, first * 2 ** min(self._failures - 1, 16)) * random.uniform(0.5, 1.0))

    def _take(self, kind: str, slice_: dict[str, Any]) -> None:
        version = (slice_.get("metadata") or {}).get("resourceVersion")
        if kind in ("ADDED", "MODIFIED"):
            self._slices[_key(slice_)] = slice_
        elif kind == "DELETED":
            self._slices.pop(_key(slice_), None)
        if version:
            self._version = str(version)

    def _good(self, publish: Publish) -> None:
        if self._told:
            log.info("the Kubernetes API answers again")
        self._failures, self._told = 0, ""
        engines = engines_of(self._slices.values(), self._settings.port, self._settings.scheme, self._server_name)
        if engines != self._last:
            if not engines and any(s.get("endpoints") for s in self._slices.values()):
                wanted = "only port" if self._settings.port is None else f"port {self._settings.port}"
                log.warning("service %s: no endpoint is ready and has the %s", self._settings.service, wanted)
            publish(engines)
        self._last = engines

    def _bad(self, error: Exception) -> None:
        self._failed("endpointslices")
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if reason != self._told:
            log.warning("watch of %s: %s; keeping the %d known engines", self._path, reason, len(self._last or ()))
        self._told = reason


def engines_of(
    slices: Iterable[dict[str, Any]], port: int | str | None, scheme: str, server_name: str
) -> list[EngineEndpoint]:
    """The usable endpoints of all slices, by pod name. A slice of a form not known here is skipped."""
    found: dict[str, tuple[bool, str, int]] = {}
    for slice_ in slices:
        number = _port(slice_.get("ports") or [], port)
        if number is None or slice_.get("addressType") not in ("IPv4", "IPv6"):
            continue
        for endpoint in slice_.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            addresses = endpoint.get("addresses") or []
            if conditions.get("ready") is False or conditions.get("terminating") is True or not addresses:
                continue
            address = str(addresses[0])
            target = endpoint.get("targetRef") or {}
            name = target.get("name") or authority(address, number)
            entry = (":" in address, address, number)
            found[name] = min(found.get(name, entry), entry)
    ordered = sorted(found.items(), key=lambda f: (f[0], ip_address(f[1][1]).packed))
    return [
        EngineEndpoint(url=f"{scheme}://{authority(address, number)}", name=name, server_name=server_name)
        for name, (_, address, number) in ordered
    ]


def _port(ports: list[dict[str, Any]], wanted: int | str | None) -> int | None:
    """The port's number; None when the slice does not have it, or has several and none was asked for."""
    tcp = [p for p in ports if p.get("protocol") in (None, "TCP") and isinstance(p.get("port"), int)]
    if wanted is None:
        return tcp[0]["port"] if len(tcp) == 1 else None
    return next((p["port"] for p in tcp if wanted in (p["port"], p.get("name"))), None)


def _key(slice_: dict[str, Any]) -> str:
    return str((slice_.get("metadata") or {}).get("name", ""))


def _own_namespace(credentials: Path) -> str:
    try:
        return (credentials / "namespace").read_text(encoding="ascii").strip()
    except OSError:
        raise ValueError(f"discovery.endpointslices: give a namespace; there is none in {credentials}") from None

"""An API server as far as a watcher sees it: lists in pages, watches from a version, forgets old versions, ends watches.

Behaves like the real one: versions only grow, a watch from a forgotten version is a 200 with an ERROR event (code 410) or a
410 at once, bookmarks carry a version and no endpoints, and what is sent may be cut anywhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Self

from aiohttp import web

NAMESPACE = "m3"
PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
SERVICE = "m3-engine"


def endpoint(address: str, pod: str | None = None, **conditions: bool | None) -> dict[str, Any]:
    conditions = {"ready": True, "serving": True, "terminating": False, **conditions}
    target = {"targetRef": {"kind": "Pod", "name": pod}} if pod else {}
    return {"addresses": [address], "conditions": conditions, **target}


def slice_(
    name: str, *endpoints: dict[str, Any], port: int = 30000, family: str = "IPv4", **more: Any
) -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": family,
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": list(endpoints),
        **more,
    }


class KubeServer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = "first"
        self.version = 100
        self.oldest = 100
        self.page = 500
        self.slices: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[int, str, dict[str, Any]]] = []
        self.lists = self.watches = self.refused = 0
        self.status: int | None = None
        """Answers everything with this when set."""
        self.gone_at_once = False
        self.chop = 0
        """Cuts what a watch sends into pieces of this many bytes."""
        self._changed = asyncio.Condition()
        self._open: set[web.StreamResponse] = set()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "token").write_text(self.token)
        (self.folder / "namespace").write_text(NAMESPACE)
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.drop_watches()
        assert self._runner is not None
        await self._runner.cleanup()

    # ------------------------------------------------------------------------------------ the test's side
    async def put(self, *slices: dict[str, Any]) -> None:
        for s in slices:
            name = s["metadata"]["name"]
            await self._event("MODIFIED" if name in self.slices else "ADDED", s)
            self.slices[name] = s

    async def delete(self, name: str) -> None:
        await self._event("DELETED", self.slices.pop(name))

    async def bookmark(self) -> None:
        await self._event("BOOKMARK", {"kind": "EndpointSlice", "metadata": {}})

    def compact(self) -> None:
        """Forgets everything up to now, as etcd does every five minutes."""
        self.version += 1
        self.oldest = self.version
        self.log.clear()

    def drop_watches(self) -> None:
        for response in list(self._open):
            if response._req is not None and response._req.transport is not None:
                response._req.transport.abort()

    def rotate(self, token: str) -> None:
        self.token = token
        (self.folder / "token").write_text(token)

    async def _event(self, kind: str, body: dict[str, Any]) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        async with self._changed:
            self.log.append((self.version, kind, json.loads(json.dumps(body))))
            self._changed.notify_all()

    # -------------------------------------------------------------------------------------- the server's
    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            self.refused += 1
            return _status(401, "Unauthorized")
        if self.status is not None:
            self.refused += 1
            return _status(self.status, "endpointslices is forbidden")
        assert request.query["labelSelector"] == f"kubernetes.io/service-name={SERVICE}"
        return await (self._watch(request) if request.query.get("watch") else self._list(request))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self.lists += 1
        start = int(request.query.get("continue", 0))
        size = min(int(request.query["limit"]), self.page)
        items = list(self.slices.values())
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if start + size < len(items):
            metadata["continue"] = str(start + size)
        return web.json_response(
            {"kind": "EndpointSliceList", "metadata": metadata, "items": items[start : start + size]}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        seen = int(request.query["resourceVersion"])
        if seen < self.oldest and self.gone_at_once:
            return _status(410, "too old resource version")
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._open.add(response)
        try:
            if seen < self.oldest:
                body = {"kind": "Status", "code": 410, "message": "too old resource version"}
                await self._send(response, "ERROR", body)
                return response
            while True:
                async with self._changed:
                    while not [e for e in self.log if e[0] > seen]:
                        await self._changed.wait()
                    fresh = [e for e in self.log if e[0] > seen]
                for version, kind, body in fresh:
                    await self._send(response, kind, body)
                    seen = version
        except (ConnectionError, asyncio.CancelledError):
            return response
        finally:
            self._open.discard(response)

    async def _send(self, response: web.StreamResponse, kind: str, body: dict[str, Any]) -> None:
        raw = json.dumps({"type": kind, "object": body}).encode() + b"\n"
        step = self.chop or len(raw)
        for start in range(0, len(raw), step):
            await response.write(raw[start : start + step])
            if self.chop:
                await asyncio.sleep(0)


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)

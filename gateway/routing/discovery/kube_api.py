"""The two calls of the Kubernetes API that discovery needs: list a resource, and watch it from there.

Over aiohttp, which is here already. The general clients bring models of every resource and their imports; two GETs
of one resource, without writes, need none of that.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

PAGE: Final = 500
WATCH_S: Final = 300
"""The server ends a watch after this; it is then taken up from where it was."""
MAX_EVENT_BYTES: Final = 64 << 20


class Gone(Exception):
    """410: the server no longer has that version. List again."""


class ApiFailure(Exception):
    """The server refused or could not be understood; the text says what to do about it where that is known."""


class KubeApi:
    def __init__(self, url: str | None, credentials: Path) -> None:
        """`credentials`: a folder with `token` and `ca.crt`, as a ServiceAccount's is mounted.

        Raises ValueError when no URL is given and this is no pod."""
        self._url = (url or in_cluster_url()).rstrip("/")
        self._credentials = credentials
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def list(self, path: str, selector: str) -> tuple[list[dict[str, Any]], str]:
        """All items and the version to watch from. Raises Gone, ApiFailure, OSError, aiohttp.ClientError, TimeoutError."""
        items: list[dict[str, Any]] = []
        query = {"labelSelector": selector, "limit": str(PAGE)}
        while True:
            async with self._get(path, query, aiohttp.ClientTimeout(total=60)) as response:
                body = _object(await response.read())
            metadata = body.get("metadata") or {}
            items += body.get("items") or []
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            query["continue"] = metadata["continue"]

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """(type, object) until the server ends the watch. Types: ADDED, MODIFIED, DELETED, BOOKMARK. Raises as `list`."""
        query = {
            "labelSelector": selector,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=WATCH_S + 30)
        async with self._get(path, query, timeout) as response:
            rest = bytearray()
            # A proxy that cuts long connections ends a watch as the server does: with no harm.
            with suppress(aiohttp.ClientPayloadError, ConnectionResetError):
                async for data in response.content.iter_any():
                    rest += data
                    while (end := rest.find(b"\n")) >= 0:
                        line = bytes(rest[:end])
                        del rest[: end + 1]
                        if line.strip():
                            yield _event(line)
                    if len(rest) > MAX_EVENT_BYTES:
                        raise ApiFailure(f"an event of the watch is longer than {MAX_EVENT_BYTES} bytes")

    def _get(self, path: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout) -> _Request:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = {"accept": "application/json"}
        # Mounted tokens live an hour and are replaced in place, certificates are now and then: read both each time.
        token = self._credentials / "token"
        if token.exists():
            headers["authorization"] = f"Bearer {token.read_text(encoding='ascii').strip()}"
        secure = _context(self._credentials / "ca.crt") if self._url.startswith("https") else True
        request = self._session.get(
            self._url + path, params=query, headers=headers, ssl=secure, timeout=timeout, allow_redirects=False
        )
        return _Request(request)


class _Request:
    """A GET whose refusal is an exception."""

    def __init__(self, request: Any) -> None:
        self._request = request

    async def __aenter__(self) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._request.__aenter__()
        if response.status == 200:
            return response
        try:
            message = _object(await response.read()).get("message", "")
        except ApiFailure:
            message = ""
        finally:
            await self._request.__aexit__(None, None, None)
        raise failure(response.status, str(message))

    async def __aexit__(self, *error: Any) -> None:
        await self._request.__aexit__(*error)


def failure(status: int, message: str) -> Exception:
    if status == 410:
        return Gone(message)
    hint = {
        401: "the API server does not accept the ServiceAccount's token",
        403: "the ServiceAccount needs list and watch on endpointslices (discovery.k8s.io) in that namespace",
    }.get(status, "")
    return ApiFailure(f"status {status}: " + "; ".join(t for t in (message[:300], hint) if t))


def in_cluster_url() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError("discovery.endpointslices: this is no pod (KUBERNETES_SERVICE_HOST is not set); give api_url")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _context(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca) if ca.exists() else None)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise ApiFailure("the answer is no JSON object; is this the Kubernetes API?")
    return body


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    event = _object(line)
    kind, body = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(body, dict):
        raise ApiFailure("an event of the watch has no type or object")
    if kind == "ERROR":
        raise failure(int(body.get("code") or 500), str(body.get("message", "")))
    return kind, body

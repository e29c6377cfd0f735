"""Host to checked addresses, once per hop, and the gate that lets a socket reach those addresses only.

`resolve_checked` looks the name up and refuses it when any of its addresses is not public. The result is pinned in a
context variable for the hop; aiohttp then asks `PinnedResolver` (never the system again, so a second DNS answer
cannot matter) and opens sockets through `pinned_socket`, which refuses an address that was not pinned. Every path by
which aiohttp could connect ends in `pinned_socket`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.media.addresses import IPNetwork, is_metadata, is_public, parse_address
from gateway.media.problems import MediaProblem
from gateway.media.settings import FetchSettings
from gateway.media.urls import Target

Lookup = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> addresses as text. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Pin:
    host: str
    port: int
    addresses: tuple[str, ...]


_PIN: ContextVar[Pin | None] = ContextVar("catalejo_media_pin", default=None)


class ThreadLookup:
    """getaddrinfo in threads of its own: a flood of slow names cannot occupy anybody else's threads."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="media-dns")

    async def __call__(self, host: str, port: int) -> list[str]:
        def look() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            return list(dict.fromkeys(str(entry[4][0]) for entry in found))

        return await asyncio.get_running_loop().run_in_executor(self._threads, look)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


async def resolve_checked(
    target: Target, settings: FetchSettings, closed: tuple[IPNetwork, ...], lookup: Lookup
) -> Pin:
    """One answer for "no such name" and "not public": a stranger must not learn the names of our network."""
    if target.address is not None:
        texts = [str(target.address)]
    else:
        try:
            texts = await lookup(target.host, target.port)
        except (OSError, UnicodeError):
            raise _not_public() from None
    if not texts:
        raise _not_public()
    private_allowed = target.endpoint in settings.private_endpoints
    for text in texts:
        try:
            address = parse_address(text)
        except ValueError:
            raise _not_public() from None
        if is_metadata(address) or not (private_allowed or is_public(address, closed)):
            raise _not_public()
    return Pin(target.host, target.port, tuple(texts))


def _not_public() -> MediaProblem:
    message = "the URL's host does not resolve to a public address"
    return MediaProblem("media_url_forbidden", message, reason="address_forbidden")


class pinned:
    """Within the block (and tasks made in it), sockets may reach `pin` and nothing else."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin

    def __enter__(self) -> None:
        self._token = _PIN.set(self._pin)

    def __exit__(self, *_: object) -> None:
        _PIN.reset(self._token)


class PinnedResolver(AbstractResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        pin = _PIN.get()
        if pin is None or (host, port) != (pin.host, pin.port):
            raise OSError("not the pinned host")
        return [
            {
                "hostname": host,
                "host": text,
                "port": port,
                "family": socket.AF_INET6 if ":" in text else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for text in pin.addresses
        ]

    async def close(self) -> None:
        return None


def pinned_socket(info: tuple[Any, ...]) -> socket.socket:
    """aiohttp's socket factory: (family, type, proto, canonical name, socket address) -> a socket, or OSError."""
    family, kind, proto, _, where = info
    pin = _PIN.get()
    if pin is None or where[0] not in pin.addresses or where[1] != pin.port:
        raise OSError("not a pinned address")
    sock = socket.socket(family=family, type=kind, proto=proto)
    sock.setblocking(False)
    return sock

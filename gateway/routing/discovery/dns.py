"""Engines from DNS: every address of one name, as a headless Service gives them. Asks the system's resolver.

A failed lookup, no such name included, keeps the last answer for `keep_s`: a resolver that restarts must not take all
engines away, and a name that is gone for good must not keep them for ever."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from time import monotonic

from gateway.routing.discovery.base import Failed, Publish, authority
from gateway.routing.discovery.settings import DnsDiscovery
from gateway.routing.settings import EngineEndpoint

log = logging.getLogger("catalejo.discovery")
LOOKUP_TIMEOUT_S = 10.0
Resolve = Callable[[str, int], Awaitable[list[str]]]


class DnsSource:
    def __init__(
        self,
        settings: DnsDiscovery,
        failed: Failed,
        resolve: Resolve | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`resolve(name, port)`: addresses as text; raises OSError or TimeoutError."""
        self._settings = settings
        self._failed = failed
        self._resolve = resolve or self._getaddrinfo
        self._clock = clock
        self._executor: ThreadPoolExecutor | None = None
        self._last: list[EngineEndpoint] | None = None
        self._good_at = clock()
        self._told = ""

    async def run(self, publish: Publish) -> None:
        try:
            while True:
                await self.look(publish)
                await asyncio.sleep(self._settings.interval_s)
        finally:
            if self._executor is not None:
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._executor = None

    async def look(self, publish: Publish) -> None:
        """One lookup, and what follows from it."""
        name = self._settings.name
        try:
            addresses = await self._resolve(name, self._settings.port)
        except (OSError, TimeoutError, UnicodeError) as e:
            self._failed("dns")
            age = self._clock() - self._good_at
            reason = e.strerror or type(e).__name__ if isinstance(e, OSError) else type(e).__name__
            if self._last and age >= self._settings.keep_s:
                log.error(
                    "no answer for %s in %.0f s (%s): its %d engines are dropped", name, age, reason, len(self._last)
                )
                self._last = []
                publish(self._last)
            elif reason != self._told:
                log.warning("cannot look up %s: %s; keeping the %d known engines", name, reason, len(self._last or ()))
            self._told = reason
            return
        self._told = ""
        self._good_at = self._clock()
        engines = [self._endpoint(a) for a in sorted(set(addresses), key=lambda a: (":" in a, ip_address(a)))]
        if engines != self._last:
            publish(engines)
        self._last = engines

    def _endpoint(self, address: str) -> EngineEndpoint:
        at = authority(address, self._settings.port)
        return EngineEndpoint(url=f"{self._settings.scheme}://{at}", name=at, server_name=self._settings.name)

    async def _getaddrinfo(self, name: str, port: int) -> list[str]:
        # One thread of its own: a resolver that hangs holds up nobody else's work.
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine dns")
        ask = asyncio.get_running_loop().run_in_executor
        async with asyncio.timeout(LOOKUP_TIMEOUT_S):
            found = await ask(self._executor, lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
        # A scope after % is a link's own address: no pod or server has only that.
        return [a for a in (str(sockaddr[0]) for *_, sockaddr in found) if "%" not in a]

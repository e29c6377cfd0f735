"""Fetches one URL of a stranger: bounded in bytes, time, redirects and reach.

Each hop: read strictly (urls.py) -> resolve once, check every address, pin (resolve.py) -> GET without cookies,
credentials, proxies or automatic decompression -> either the next hop or the body, streamed under the byte cap.
Deadlines: connect (name, TCP, TLS), idle (also before the header), minimum rate, and one total over everything.
Answers only "bytes or MediaProblem"; what the bytes are is decided by their magic, later.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import re
import ssl
import time
from dataclasses import dataclass
from typing import Final

import aiohttp

from gateway.media.inflight import BytesInFlight, Lease
from gateway.media.limits import HostSlots
from gateway.media.metrics import MediaMetrics
from gateway.media.preproc import IMAGE_TYPES
from gateway.media.problems import MediaProblem, mib
from gateway.media.resolve import Lookup, PinnedResolver, ThreadLookup, pinned, pinned_socket, resolve_checked
from gateway.media.settings import FetchSettings
from gateway.media.urls import Target, next_hop, parse_target

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
ACCEPT: Final = {
    "image": ",".join(IMAGE_TYPES),
    "video": "video/mp4,video/webm,video/quicktime,video/x-matroska,video/*;q=0.5",
}
_CHUNK: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Fetched:
    """The body, its declared media type, how long the answer may be reused (seconds), and the memory lease."""

    data: bytes
    content_type: str
    reusable_s: float
    lease: Lease


class Fetcher:
    """`lookup` and `ssl_context` are for tests and embedding; configuration cannot reach them."""

    def __init__(
        self,
        settings: FetchSettings,
        metrics: MediaMetrics,
        in_flight: BytesInFlight,
        *,
        lookup: Lookup | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._in_flight = in_flight
        self._closed_networks = tuple(ipaddress.ip_network(net) for net in settings.deny_networks)
        self._threads = None if lookup else ThreadLookup(settings.resolver_threads)
        self._lookup: Lookup = lookup or self._threads  # type: ignore[assignment]  # one of the two is set
        self._ssl = ssl_context
        self._slots = HostSlots(settings)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(
            resolver=PinnedResolver(),
            socket_factory=pinned_socket,
            use_dns_cache=False,
            force_close=True,
            limit=0,
            ssl=self._ssl or True,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._settings.connect_timeout_s, sock_read=self._settings.idle_timeout_s
            ),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._threads is not None:
            self._threads.close()

    async def fetch(self, url: str, modality: str, max_bytes: int, *, tenant: str = "default") -> Fetched:
        """Raises MediaProblem. The caller owns the lease of what it gets."""
        settings = self._settings
        outcome = "failed"
        began = time.monotonic()
        try:
            target = parse_target(url, settings)
            async with asyncio.timeout(settings.total_timeout_s):
                result = await self._follow(target, modality, max_bytes, tenant)
            outcome = "ok"
            return result
        except TimeoutError:
            outcome = "timeout"
            raise MediaProblem(
                "media_fetch_timeout", f"the URL was not fetched within {settings.total_timeout_s:g} s"
            ) from None
        except MediaProblem as problem:
            if problem.code == "media_fetch_timeout":
                outcome = "timeout"
            elif problem.code in ("media_url_forbidden", "invalid_media_url"):
                outcome = "refused"
            raise
        finally:
            self._metrics.fetches.labels(outcome).inc()
            self._metrics.seconds.labels("fetch").observe(time.monotonic() - began)

    async def _follow(self, target: Target, modality: str, max_bytes: int, tenant: str) -> Fetched:
        for _ in range(self._settings.max_redirects + 1):
            async with self._slots.take(target.host, tenant):
                answer = await self._hop(target, modality, max_bytes)
            if isinstance(answer, Fetched):
                return answer
            target = next_hop(target, answer, self._settings)
        raise MediaProblem(
            "media_fetch_failed",
            f"the URL redirects more than {self._settings.max_redirects} times",
            reason="too_many_redirects",
        )

    async def _hop(self, target: Target, modality: str, max_bytes: int) -> Fetched | str:
        """The body, or the location to go on to."""
        settings = self._settings
        assert self._session is not None, "Fetcher.start() was not called"
        headers = {
            "User-Agent": settings.user_agent,
            "Accept": ACCEPT[modality],
            "Accept-Encoding": "identity",
        }
        try:
            try:
                async with asyncio.timeout(settings.connect_timeout_s):
                    pin = await resolve_checked(target, settings, self._closed_networks, self._lookup)
            except TimeoutError:
                raise _timeout("the URL's host was not resolved", settings.connect_timeout_s) from None
            with pinned(pin):
                async with asyncio.timeout(settings.connect_timeout_s + settings.idle_timeout_s):
                    response = await self._session.get(target.url(), headers=headers, allow_redirects=False)
            async with response:
                if response.status in REDIRECTS:
                    return _location(response)
                _check_head(response, max_bytes)
                return await self._body(response, max_bytes)
        except TimeoutError:  # ours above and aiohttp's; the total deadline passes here as a cancellation
            raise _timeout("the URL's server was not heard from", settings.idle_timeout_s) from None
        except aiohttp.ClientPayloadError:
            raise MediaProblem(
                "media_fetch_failed", "the URL's server closed before the whole body came", reason="truncated_body"
            ) from None
        except aiohttp.ClientConnectorError:
            raise MediaProblem(
                "media_fetch_failed", "no connection to the URL's server could be made", reason="connect_failed"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise MediaProblem(
                "media_fetch_failed", "the URL's server did not answer in proper HTTP", reason="bad_http"
            ) from None

    async def _body(self, response: aiohttp.ClientResponse, max_bytes: int) -> Fetched:
        settings = self._settings
        lease = self._in_flight.lease()
        # Written in place and taken out without a copy: joining 60 MiB would hold up every stream for a while. Pages of
        # a promised length that never comes are never touched.
        body = io.BytesIO(bytes(response.content_length or 0))
        size = 0
        began = time.monotonic()
        waited = 0.0
        try:
            async for piece in response.content.iter_chunked(_CHUNK):
                size += len(piece)
                if size > max_bytes:
                    raise _too_large(None, max_bytes)
                if size > lease.size:
                    before = time.monotonic()
                    await lease.grow(size, response.content_length or max_bytes)
                    waited += time.monotonic() - before
                body.write(piece)
                spent = time.monotonic() - began - waited
                if spent > settings.min_rate_grace_s and size < settings.min_rate_bytes_s * spent:
                    raise MediaProblem(
                        "media_fetch_timeout",
                        f"the URL's server sends less than {settings.min_rate_bytes_s} bytes a second",
                        reason="too_slow",
                    )
            body.truncate(size)
        except BaseException:
            lease.release()
            raise
        return Fetched(body.getvalue(), response.content_type, _reusable_s(response), lease)


def _timeout(what: str, limit_s: float) -> MediaProblem:
    return MediaProblem("media_fetch_timeout", f"{what} within {limit_s:g} s")


def _too_large(size: int | None, max_bytes: int) -> MediaProblem:
    what = f"the body is {mib(size)}" if size is not None else "the body is larger than allowed"
    return MediaProblem("media_too_large", f"{what}; the limit is {mib(max_bytes)}")


def _location(response: aiohttp.ClientResponse) -> str:
    location = response.headers.get("Location")
    if not location:
        raise MediaProblem("media_fetch_failed", "the URL's server redirects to nowhere", reason="bad_http")
    return location


def _check_head(response: aiohttp.ClientResponse, max_bytes: int) -> None:
    if response.status != 200:
        raise MediaProblem("media_fetch_failed", f"the URL's server answered {response.status}", reason="bad_status")
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise MediaProblem(
            "media_fetch_failed", "the URL's server sent a compressed body, which was not asked for", reason="encoded"
        )
    if response.content_length is not None and response.content_length > max_bytes:
        raise _too_large(response.content_length, max_bytes)


def _reusable_s(response: aiohttp.ClientResponse) -> float:
    """Seconds the server lets the answer be reused; infinite when it says nothing. RFC 9111, as a private cache."""
    directives = ",".join(response.headers.getall("Cache-Control", ())).lower()
    if re.search(r"\bno-(store|cache)\b", directives) or response.headers.get("Vary", "").strip() == "*":
        return 0.0
    found = re.search(r"\bmax-age\s*=\s*\"?(\d{1,9})", directives)
    if not found:
        return float("inf")
    age = response.headers.get("Age", "0")
    return max(0.0, float(found.group(1)) - (float(age) if age.isascii() and age.isdigit() else 0.0))

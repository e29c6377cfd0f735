"""Whatever a forbidden address is spelled like, and whichever way it comes in, no socket is ever connected to it.

The spy is the interpreter's own audit hook, so it sees every connect of this process, by whatever library.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.media.addresses import IPV4_CLOSED, IPV6_CLOSED, IPAddress, is_public
from gateway.media.fetch import Fetcher
from gateway.media.inflight import BytesInFlight
from gateway.media.metrics import MediaMetrics
from gateway.media.problems import MediaProblem
from tests.fixtures.media.hostile import Server, lifted

CONNECTS: list[Any] = []
_watching = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _watching and event == "socket.connect":
        CONNECTS.append(args[1])


sys.addaudithook(_hook)


@contextmanager
def watching() -> Iterator[list[Any]]:
    global _watching
    CONNECTS.clear()
    _watching = True
    try:
        yield CONNECTS
    finally:
        _watching = False


def _within(net: ipaddress.IPv4Network | ipaddress.IPv6Network) -> st.SearchStrategy[IPAddress]:
    first, last = int(net.network_address), int(net.broadcast_address)
    kind = type(net.network_address)
    return st.one_of(st.just(first), st.just(last), st.integers(first, last)).map(kind)


IPV4 = st.one_of(*map(_within, IPV4_CLOSED))
CARRIERS = ("::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::")
IPV6 = st.one_of(
    *map(_within, IPV6_CLOSED),
    _within(ipaddress.IPv6Network("fc00::/7")),
    _within(ipaddress.IPv6Network("fe80::/9")),
    _within(ipaddress.IPv6Network("ff00::/8")),
    st.builds(
        lambda v4, c: ipaddress.IPv6Address(int(v4) | int(ipaddress.IPv6Address(c))), IPV4, st.sampled_from(CARRIERS)
    ),
    st.builds(lambda v4: ipaddress.IPv6Address((0x2002 << 112) | (int(v4) << 80)), IPV4),
    st.builds(lambda v4: ipaddress.IPv6Address((0x20010000 << 96) | (int(v4) ^ 0xFFFFFFFF)), IPV4),
)
WIDE = str.maketrans("0123456789.", "０１２３４５６７８９。")


@st.composite
def ipv4_spelling(draw: st.DrawFn) -> str:
    """One of the ways in which inet_aton, browsers or sloppy parsers read an IPv4 address."""
    value = int(draw(IPV4))
    parts = draw(st.integers(1, 4))
    numbers = [(value >> (24 - 8 * i)) & 255 for i in range(parts - 1)]
    numbers.append(value & ((1 << (8 * (5 - parts))) - 1))
    write = [str, hex, lambda n: hex(n).upper().replace("X", "x"), lambda n: f"0{n:o}", lambda n: f"0x{n:08x}"]
    host = ".".join(draw(st.sampled_from(write))(n) for n in numbers)
    dress = [
        lambda h: h,
        lambda h: h + ".",
        lambda h: h.translate(WIDE),
        lambda h: h.replace(".", "%2e"),
        lambda h: "example.com@" + h,
        lambda h: "example.com:80@" + h,
        lambda h: h + "#@example.com",
        lambda h: h + "?@example.com",
        lambda h: h + "\\@example.com",
        lambda h: f"[{h}]",
        lambda h: h + ":443",
        lambda h: h.upper(),
    ]
    return str(draw(st.sampled_from(dress))(host))


@st.composite
def ipv6_spelling(draw: st.DrawFn) -> str:
    address = draw(IPV6)
    assert isinstance(address, ipaddress.IPv6Address)
    text = draw(st.sampled_from([str(address), address.exploded, str(address).upper()]))
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if draw(st.booleans()):
        text = address.exploded.rsplit(":", 2)[0] + f":{low}"
    return draw(st.sampled_from(["[{}]", "[{}]:80", "[{}%25lo]", "{}", "x@[{}]"])).format(text)


SPELLINGS = st.one_of(ipv4_spelling(), ipv6_spelling())
QUICK = settings(max_examples=150)


async def _attempt(url: str, answer: str, redirect_from: str | None) -> list[Any]:
    """Fetches `url`, directly or as a redirect; any name resolves to `answer`. Returns where sockets were connected."""

    async def lookup(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "first.example" else [answer]

    target = redirect_from or url
    # The header is written as UTF-8, as careless servers do.
    raw = f"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: {url}\r\n\r\n".encode()
    async with Server(lambda c: c.send(raw)) as server:
        target = target.format(port=server.port)
        fetcher = Fetcher(lifted(f"first.example:{server.port}"), MediaMetrics(), BytesInFlight(1 << 20), lookup=lookup)
        await fetcher.start()
        try:
            with watching() as connects:
                with pytest.raises(MediaProblem) as caught:
                    await fetcher.fetch(target, "image", 1 << 20)
                assert caught.value.at("p").status == 400
                assert server.connections == (1 if redirect_from else 0)
                return [where for where in connects if where[:2] != ("127.0.0.1", server.port)]
        finally:
            await fetcher.close()


@QUICK
@given(SPELLINGS, st.sampled_from(["http", "https"]), IPV4)
def test_no_spelling_in_a_url_leads_to_a_forbidden_address(spelling: str, scheme: str, answer: IPAddress) -> None:
    assert asyncio.run(_attempt(f"{scheme}://{spelling}/x.png", str(answer), None)) == []


@QUICK
@given(SPELLINGS, st.sampled_from(["http:", "https:", ""]), IPV4)
def test_no_spelling_in_a_redirect_leads_to_a_forbidden_address(spelling: str, scheme: str, answer: IPAddress) -> None:
    url = f"{scheme}//{spelling}/x.png"
    assert asyncio.run(_attempt(url, str(answer), "http://first.example:{port}/")) == []


@QUICK
@given(st.one_of(IPV4, IPV6))
def test_no_dns_answer_leads_to_a_forbidden_address(address: IPAddress) -> None:
    assert asyncio.run(_attempt("http://name.example/", str(address), None)) == []


@settings(max_examples=500)
@given(st.one_of(IPV4, IPV6))
def test_the_table_of_addresses_refuses_each_of_them(address: IPAddress) -> None:
    assert not is_public(address)


def test_the_spy_sees_what_it_should() -> None:
    async def go() -> list[Any]:
        async with Server(lambda c: c.answer("404 Not Found")) as server:
            with watching() as connects:
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.close()
                await writer.wait_closed()
            return [where[:2] == ("127.0.0.1", server.port) for where in connects]

    assert asyncio.run(go()) == [True]


def test_ordinary_public_addresses_pass() -> None:
    for text in ("8.8.8.8", "93.184.216.34", "100.63.255.255", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1"):
        assert is_public(ipaddress.ip_address(text)), text
    assert not is_public(ipaddress.ip_address("8.8.8.8"), (ipaddress.ip_network("8.8.0.0/16"),))

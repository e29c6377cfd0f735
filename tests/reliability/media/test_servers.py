"""Every behaviour of fixtures/media/servers.json as a real server on loopback, and what the fetcher makes of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import preproc_rs
from gateway.errors import ApiError
from gateway.media.fetch import Fetched, Fetcher
from gateway.media.inflight import BytesInFlight
from gateway.media.metrics import MediaMetrics
from gateway.media.problems import MediaProblem
from gateway.media.service import MediaService
from gateway.media.settings import FetchSettings, MediaSettings
from gateway.media.types import MediaPart
from tests.fixtures.media.hostile import Connection, Script, Server, Table, lifted
from tests.fixtures.media.png import png

FIXTURES = Path(__file__).parents[2] / "fixtures" / "media"
CASES = {case["server"]: case["expect"] for case in json.loads((FIXTURES / "servers.json").read_text())}
HOST = "pictures.example"
CAP = 1 << 20


@asynccontextmanager
async def fetcher(
    settings: FetchSettings, lookup: Table | None = None, ssl_context: ssl.SSLContext | None = None
) -> AsyncIterator[Fetcher]:
    table = lookup or Table(pictures_example=[["127.0.0.1"]])
    made = Fetcher(settings, MediaMetrics(), BytesInFlight(8 << 20), lookup=table, ssl_context=ssl_context)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def fetch_from(script: Script, **changes: object) -> tuple[Fetched | MediaProblem, Server]:
    async with Server(script) as server:
        async with fetcher(lifted(f"{HOST}:{server.port}", **changes)) as f:
            try:
                return await f.fetch(f"http://{HOST}:{server.port}/a.png", "image", CAP), server
            except MediaProblem as problem:
                return problem, server


def refused(answer: Fetched | MediaProblem, code: str, reason: str | None = None) -> None:
    assert isinstance(answer, MediaProblem), answer
    assert (answer.code, answer.reason) == (code, reason or code)
    assert answer.at("messages[0].content[1]").status == 400
    assert "127.0.0.1" not in answer.message and "169.254" not in answer.message


def case(name: str) -> None:
    """Names the entry of servers.json that a test is about."""
    assert name in CASES


async def test_a_well_behaved_server_is_fetched_with_honest_headers_and_nothing_else() -> None:
    picture = png()

    async def script(c: Connection) -> None:
        await c.answer("200 OK", picture, "Content-Type: image/png\r\nSet-Cookie: a=b; Path=/\r\n")

    async with Server(script) as server:
        async with fetcher(lifted(f"{HOST}:{server.port}")) as f:
            for _ in range(2):
                got = await f.fetch(f"http://{HOST}:{server.port}/a%20b.png?x=1&y=%C3%A9#part", "image", CAP)
    assert got.data == picture and got.content_type == "image/png"
    head = server.heads[1].lower()
    assert server.heads[0].startswith("GET /a%20b.png?x=1&y=%C3%A9 HTTP/1.1\r\n")
    assert f"host: {HOST}:{server.port}\r\n" in head
    assert "user-agent: catalejo/" in head and "accept-encoding: identity" in head
    for never in ("cookie", "authorization", "referer", "image/svg", "*/*"):
        assert never not in head
    assert ("image/avif" in head) == ("AVIF" in preproc_rs.IMAGE_FORMATS)


async def test_redirect_to_a_metadata_address_is_refused_before_connecting() -> None:
    case("302 to http://169.254.169.254/")
    answer, server = await fetch_from(lambda c: c.answer("302 Found", headers="Location: http://169.254.169.254/\r\n"))
    refused(answer, "media_url_forbidden", "address_forbidden")
    assert server.connections == 1


async def test_redirect_chain_of_eleven_hits_the_limit() -> None:
    case("302 chain of 11")

    async def script(c: Connection) -> None:
        step = int(c.head.split("?")[1].split(" ")[0]) if "?" in c.head.split("\r\n")[0] else 0
        if step == 11:
            await c.answer("200 OK", png())
        else:
            await c.answer("302 Found", headers=f"Location: /a.png?{step + 1}\r\n")

    answer, server = await fetch_from(script)
    refused(answer, "media_fetch_failed", "too_many_redirects")
    assert server.connections == 6
    answer, _ = await fetch_from(script, max_redirects=11)
    assert isinstance(answer, Fetched)


async def test_redirect_from_https_to_http_is_refused(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    case("302 https->http")
    serving, trusting = tls
    names: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: names.append(name)
    async with Server(lambda c: c.answer("200 OK", png())) as plain:
        target = f"http://{HOST}:{plain.port}/"
        secure = Server(lambda c: c.answer("302 Found", headers=f"Location: {target}\r\n"), ssl_context=serving)
        async with secure:
            settings = lifted(f"{HOST}:{secure.port}", f"{HOST}:{plain.port}")
            async with fetcher(settings, ssl_context=trusting) as f:
                with pytest.raises(MediaProblem) as caught:
                    await f.fetch(f"https://{HOST}:{secure.port}/", "image", CAP)
    refused(caught.value, "media_url_forbidden", "redirect_downgrade")
    assert plain.connections == 0
    assert names == [HOST], "the certificate was asked for by name although the address was pinned"
    assert f"Host: {HOST}:{secure.port}\r\n" in secure.heads[0]


async def test_certificate_of_another_name_is_refused(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    serving, trusting = tls
    async with Server(lambda c: c.answer("200 OK", png()), ssl_context=serving) as server:
        settings = lifted(f"other.example:{server.port}")
        async with fetcher(settings, Table(other_example=[["127.0.0.1"]]), trusting) as f:
            with pytest.raises(MediaProblem) as caught:
                await f.fetch(f"https://other.example:{server.port}/", "image", CAP)
    refused(caught.value, "media_fetch_failed", "connect_failed")


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "ftp://h/x",
        "data:image/png;base64,AAAA",
        "//127.0.0.1/",
        "http://[::1]/",
        "\\\\h\\s",
        "http://@pictures.example/",
    ],
)
async def test_redirect_to_another_scheme_or_place_is_refused(location: str) -> None:
    case("302 to file:///etc/passwd")
    answer, server = await fetch_from(lambda c: c.answer("302 Found", headers=f"Location: {location}\r\n"))
    assert isinstance(answer, MediaProblem) and answer.code in ("invalid_media_url", "media_url_forbidden")
    assert server.connections == 1


async def test_a_page_instead_of_a_picture_is_refused() -> None:
    case("200 text/html")
    page = b"<!doctype html><title>Sign in</title>"
    async with Server(lambda c: c.answer("200 OK", page, "Content-Type: text/html\r\n")) as server:
        settings = MediaSettings(fetch=lifted(f"{HOST}:{server.port}"), video_workers=0)
        service = MediaService(settings, lookup=Table(pictures_example=[["127.0.0.1"]]))
        await service.start()
        with pytest.raises(ApiError) as caught:
            await service.prepare([MediaPart("image", "messages[0].content[1]", f"http://{HOST}:{server.port}/")])
        await service.close()
    assert (caught.value.status, caught.value.param) == (400, "messages[0].content[1]")


def test_every_case_of_the_list_has_a_test() -> None:
    named = set(re.findall(r'case\("([^"]+)"', Path(__file__).read_text())) | {"206 partial without Range", "404/500"}
    assert named == set(CASES)


@pytest.mark.parametrize(
    "location",
    [
        b"/\xff\xfe",
        b"http://\xff/",
        b"http://a.example/\xed\xa0\x80",
        b"/" + b"a" * 8000,
        b"http://[",
        b"//[::1",
        b"?\x80",
        b"%%%",
    ],
)
async def test_redirect_to_any_bytes_is_an_answer(location: bytes) -> None:
    head = b"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n"
    answer, _ = await fetch_from(lambda c: c.send(head))
    assert isinstance(answer, MediaProblem)
    assert answer.code in ("invalid_media_url", "media_url_forbidden", "media_fetch_failed")


async def test_redirect_without_a_location_is_a_failure() -> None:
    answer, _ = await fetch_from(lambda c: c.answer("302 Found"))
    refused(answer, "media_fetch_failed", "bad_http")


async def test_rebinding_resolver_is_asked_once_and_only_the_checked_address_is_used() -> None:
    case("DNS answer public first, 127.0.0.1 second (rebinding)")
    async with Server(lambda c: c.answer("200 OK", png()), address="127.0.0.2") as honest:
        async with Server(lambda c: c.answer("200 OK", png()), port=honest.port) as trap:
            table = Table(rebind_example=[["127.0.0.2"], ["127.0.0.1"]])
            async with fetcher(lifted(f"rebind.example:{honest.port}"), table) as f:
                await f.fetch(f"http://rebind.example:{honest.port}/", "image", CAP)
    assert table.asked == ["rebind.example"]
    assert (honest.connections, trap.connections) == (1, 0)


async def test_every_hop_is_resolved_and_checked_anew() -> None:
    async with Server(lambda c: c.answer("302 Found", headers="Location: /again\r\n")) as server:
        table = Table(rebind_example=[["127.0.0.1"], ["169.254.169.254"]])
        async with fetcher(lifted(f"rebind.example:{server.port}"), table) as f:
            with pytest.raises(MediaProblem) as caught:
                await f.fetch(f"http://rebind.example:{server.port}/", "image", CAP)
    refused(caught.value, "media_url_forbidden", "address_forbidden")
    assert server.connections == 1 and len(table.asked) == 2


@pytest.mark.parametrize("private", ["127.0.0.1", "10.1.2.3", "::1", "fd00::1", "169.254.169.254", "fe80::1%eth0"])
async def test_name_with_a_public_and_a_private_address_is_refused(private: str) -> None:
    case("DNS answer mixed public+private")
    table = Table(mixed_example=[["93.184.216.34", private]])
    async with fetcher(lifted(), table) as f:
        with pytest.raises(MediaProblem) as caught:
            await f.fetch("http://mixed.example/", "image", CAP)
    refused(caught.value, "media_url_forbidden", "address_forbidden")


async def test_public_name_of_a_loopback_address_is_refused() -> None:
    table = Table()
    table.hosts["127.0.0.1.nip.io"] = [["127.0.0.1"]]
    async with fetcher(lifted(), table) as f:
        with pytest.raises(MediaProblem) as caught:
            await f.fetch("http://127.0.0.1.nip.io/", "image", CAP)
    refused(caught.value, "media_url_forbidden", "address_forbidden")


async def test_unknown_name_and_private_name_get_the_same_answer() -> None:
    messages = set()
    async with fetcher(lifted(), Table(inside_example=[["10.0.0.1"]])) as f:
        for host in ("inside.example", "nobody.example"):
            with pytest.raises(MediaProblem) as caught:
                await f.fetch(f"http://{host}/", "image", CAP)
            messages.add((caught.value.code, caught.value.message))
    assert len(messages) == 1


async def test_allowed_private_endpoint_still_cannot_be_a_metadata_address() -> None:
    for text in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254", "::ffff:169.254.169.254"):
        async with fetcher(lifted("store.example:80"), Table(store_example=[[text]])) as f:
            with pytest.raises(MediaProblem) as caught:
                await f.fetch("http://store.example/", "image", CAP)
        refused(caught.value, "media_url_forbidden", "address_forbidden")


async def test_huge_content_length_is_refused_before_the_body() -> None:
    case("Content-Length 10 GB")
    answer, _ = await fetch_from(lambda c: c.answer("200 OK", b"x", length=10 << 30))
    refused(answer, "media_too_large")
    assert "10240.0 MiB" in answer.message and "1.0 MiB" in answer.message  # type: ignore[union-attr]


async def test_endless_body_is_cut_at_the_cap() -> None:
    case("no Content-Length, endless body")
    sent = 0

    async def script(c: Connection) -> None:
        nonlocal sent
        await c.answer("200 OK", length=None)
        while True:
            await c.send(b"x" * 65536)
            sent += 65536

    answer, _ = await fetch_from(script)
    refused(answer, "media_too_large")
    assert sent < CAP + (16 << 20), "at most the cap and what the kernel buffered was sent"


async def test_compressed_bodies_are_not_inflated() -> None:
    case("gzip Content-Encoding bomb")
    bomb = gzip.compress(bytes(8 << 20))
    for coding in ("gzip", "deflate", "br", "zstd", "identity, gzip"):
        answer, _ = await fetch_from(
            lambda c, coding=coding: c.answer("200 OK", bomb, f"Content-Encoding: {coding}\r\n")  # type: ignore[misc]
        )
        refused(answer, "media_fetch_failed", "encoded")


async def test_a_byte_now_and_then_meets_the_total_deadline_or_the_minimum_rate() -> None:
    case("1 byte per second body")

    async def script(c: Connection) -> None:
        await c.answer("200 OK", length=1000)
        while True:
            await c.send(b"x")
            await asyncio.sleep(0.05)

    answer, server = await fetch_from(script, min_rate_bytes_s=0, total_timeout_s=0.8)
    refused(answer, "media_fetch_timeout")
    assert "0.8 s" in answer.message  # type: ignore[union-attr]
    answer, _ = await fetch_from(script, min_rate_bytes_s=1024, min_rate_grace_s=0.2, total_timeout_s=30)
    refused(answer, "media_fetch_timeout", "too_slow")
    assert server.open_now == 0


async def test_header_bytes_now_and_then_meet_a_deadline() -> None:
    async def script(c: Connection) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000:
            await c.send(bytes([byte]))
            await asyncio.sleep(0.05)

    answer, _ = await fetch_from(script, total_timeout_s=30)
    refused(answer, "media_fetch_timeout")


async def test_endless_interim_answers_meet_a_deadline() -> None:
    async def script(c: Connection) -> None:
        while True:
            await c.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await asyncio.sleep(0.01)

    answer, _ = await fetch_from(script, total_timeout_s=30)
    refused(answer, "media_fetch_timeout")


async def test_a_handshake_that_never_comes_meets_the_connect_timeout() -> None:
    async with Server(lambda c: c.until_gone()) as deaf:  # waits for an HTTP head, which a client hello is not
        async with fetcher(lifted(f"{HOST}:{deaf.port}", total_timeout_s=30)) as f:
            with pytest.raises(MediaProblem) as caught:
                await f.fetch(f"https://{HOST}:{deaf.port}/", "image", CAP)
    refused(caught.value, "media_fetch_timeout")


async def test_a_reset_in_the_middle_is_a_failed_fetch() -> None:
    async def script(c: Connection) -> None:
        await c.answer("200 OK", b"half", length=1000)
        c.writer.transport.abort()

    answer, _ = await fetch_from(script)
    refused(answer, "media_fetch_failed", "truncated_body")


async def test_silence_after_accepting_meets_the_idle_timeout() -> None:
    case("accepts TCP and never answers")
    answer, _ = await fetch_from(lambda c: asyncio.sleep(60), total_timeout_s=30)
    refused(answer, "media_fetch_timeout")


async def test_silence_in_the_middle_meets_the_idle_timeout() -> None:
    async def script(c: Connection) -> None:
        await c.answer("200 OK", b"half", length=8)
        await asyncio.sleep(60)

    answer, _ = await fetch_from(script, total_timeout_s=30)
    refused(answer, "media_fetch_timeout")


@pytest.mark.parametrize("status", ["206 Partial Content", "404 Not Found", "401 No", "500 Oh"])
async def test_other_statuses_are_the_clients_mistake_and_named(status: str) -> None:
    case("206 partial without Range" if status.startswith("206") else "404/500")
    answer, _ = await fetch_from(lambda c: c.answer(status, png()))
    refused(answer, "media_fetch_failed", "bad_status")
    assert status[:3] in answer.message  # type: ignore[union-attr]


async def test_body_shorter_than_its_length_is_truncated() -> None:
    case("Content-Length larger than body")
    answer, _ = await fetch_from(lambda c: c.answer("200 OK", png(), length=len(png()) + 10))
    refused(answer, "media_fetch_failed", "truncated_body")


@pytest.mark.parametrize(
    "rude",
    [
        b"\0\1\2\3 not http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"",
    ],
    ids=["garbage", "negative length", "two lengths", "bad chunk", "long header", "many headers", "hang up"],
)
async def test_broken_http_is_the_clients_mistake_and_never_ours(rude: bytes) -> None:
    answer, _ = await fetch_from(lambda c: c.send(rude))
    assert isinstance(answer, MediaProblem) and answer.code == "media_fetch_failed"


async def test_nobody_listens() -> None:
    async with Server(lambda c: c.answer("200 OK")) as server:
        port = server.port
    async with fetcher(lifted(f"{HOST}:{port}")) as f:
        with pytest.raises(MediaProblem) as caught:
            await f.fetch(f"http://{HOST}:{port}/", "image", CAP)
    refused(caught.value, "media_fetch_failed", "connect_failed")


async def test_slow_resolver_meets_the_connect_timeout() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    made = Fetcher(lifted(), MediaMetrics(), BytesInFlight(1 << 20), lookup=never)
    await made.start()
    with pytest.raises(MediaProblem) as caught:
        await made.fetch("http://slow.example/", "image", CAP)
    await made.close()
    refused(caught.value, "media_fetch_timeout")


@pytest.mark.parametrize(
    ("cache_control", "seconds"),
    [("", float("inf")), ("no-store", 0), ("private, no-cache", 0), ("public, max-age=60", 60), ("max-age=0", 0)],
)
async def test_the_server_can_only_shorten_reuse(cache_control: str, seconds: float) -> None:
    headers = f"Cache-Control: {cache_control}\r\n" if cache_control else ""
    answer, _ = await fetch_from(lambda c: c.answer("200 OK", png(), headers))
    assert isinstance(answer, Fetched) and answer.reusable_s == seconds

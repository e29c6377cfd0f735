"""TLS to engines against a real TLS server: whose certificate is trusted, under which name, and the gateway's own."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.upstream.settings import EngineTls
from gateway.upstream.tls import BadTls, TlsContexts, client_context
from tests.api.harness import TINY, Stack
from tests.mock_engine import MockEngine

GOOD = [{"pieces": ["secret"], "finish": "stop"}]


class Authority:
    """A certificate authority in a folder, by openssl."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.ca = folder / f"{name}.pem"
        self._run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                  "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip

    def issue(self, name: str, san: str) -> tuple[Path, Path]:
        """(certificate, key)"""
        self._run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                  "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={san}\n")
        self._run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key",
                  "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


def served(authority: Authority, san: str = "IP:127.0.0.1", *, mutual: bool = False) -> ssl.SSLContext:
    certificate, key = authority.issue(f"server-{abs(hash((san, mutual)))}", san)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca)
    return context


async def state(context: ssl.SSLContext, default: dict[str, Any], **endpoint: Any) -> str:
    """What the gateway says of an engine behind `context`; a request must agree."""
    async with MockEngine(TINY, GOOD, tls=context) as engine:
        engines = [{"url": engine.url, "name": "e", **endpoint}]
        async with Stack(engines=engines, upstream={"tls": default}, routing={"health_interval_s": 600}) as stack:
            up = (await stack.get("/ready")).json["engines"]["e"]
            answer = await stack.chat("Hi")
            assert (answer.status == 200) is (up == "up"), answer.raw
            if up == "up":
                assert answer.message["content"] == "secret"
                assert (await stack.stream("Hi")).text() == "secret"
            return up


async def test_a_private_authority_is_trusted_when_it_is_named(authority: Authority) -> None:
    context = served(authority)
    assert await state(context, {"ca": authority.ca}) == "up"
    assert await state(context, {}) == "down", "the system knows no such authority"
    assert await state(context, {"ca": authority.ca}, tls={}) == "down", "an engine's own settings win"


async def test_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    assert await state(served(authority), {"ca": Authority(tmp_path, "other").ca}) == "down"


async def test_the_name_in_the_certificate_is_checked_and_can_be_given(authority: Authority) -> None:
    context = served(authority, "DNS:engine.m3.svc")
    assert await state(context, {"ca": authority.ca}) == "down"
    assert await state(context, {"ca": authority.ca, "server_name": "engine.m3.svc"}) == "up"
    assert await state(context, {"ca": authority.ca}, server_name="engine.m3.svc") == "up", "as discovery gives it"
    assert await state(context, {"ca": authority.ca, "server_name": "other.m3.svc"}) == "down"


async def test_an_engine_may_ask_for_the_gateways_certificate(authority: Authority) -> None:
    context = served(authority, mutual=True)
    certificate, key = authority.issue("gateway", "DNS:gateway")
    assert await state(context, {"ca": authority.ca}) == "down"
    assert await state(context, {"ca": authority.ca, "certificate": certificate, "key": key}) == "up"
    both = authority.folder / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    assert await state(context, {"ca": authority.ca, "certificate": both}) == "up"


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("lonely", "DNS:x")
    empty = tmp_path / "empty.pem"
    empty.touch()
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked], check=True, capture_output=True
    )
    for tls, named in (
        (EngineTls(ca=tmp_path / "none.pem"), "none.pem"),
        (EngineTls(ca=empty), "empty.pem"),
        (EngineTls(certificate=certificate), "lonely.pem"),  # no key in it
        (EngineTls(certificate=certificate, key=authority.folder / "ours.key"), "ours.key"),
        (EngineTls(certificate=certificate, key=locked), "locked.key"),
    ):
        with pytest.raises(BadTls, match=named):
            client_context(tls)
    with pytest.raises(ValueError, match="key is given without certificate"):
        EngineTls(key=key)


def test_replaced_files_are_taken_up_and_broken_ones_are_not(authority: Authority, tmp_path: Path) -> None:
    first, key = authority.issue("first", "DNS:x")
    second, second_key = authority.issue("second", "DNS:x")
    live, live_key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(certificate: bytes, its_key: bytes) -> None:
        for path, data in ((live, certificate), (live_key, its_key)):
            (tmp_path / "new").write_bytes(data)
            os.replace(tmp_path / "new", path)

    put(first.read_bytes(), key.read_bytes())
    tls = EngineTls(ca=authority.ca, certificate=live, key=live_key)
    contexts = TlsContexts()
    context = contexts.get(tls)
    assert shown(context, authority) == "first"
    put(b"nothing", second_key.read_bytes())
    contexts.refresh()
    assert shown(context, authority) == "first"
    put(second.read_bytes(), second_key.read_bytes())
    contexts.refresh()
    assert contexts.get(tls) is context
    assert shown(context, authority) == "second"


def shown(context: ssl.SSLContext, authority: Authority) -> str:
    """The common name that a server sees, by a handshake in memory."""
    server_in, server_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = served(authority, "DNS:engine", mutual=True).wrap_bio(server_in, server_out, server_side=True)
    client = context.wrap_bio(server_out, server_in, server_hostname="engine")
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    peer = server.getpeercert()
    assert peer is not None
    return dict(pair[0] for pair in peer["subject"])["commonName"]  # type: ignore[index, misc]

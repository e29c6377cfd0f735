"""HTTPS on the port of a real `catalejo gateway`, plain HTTP on the second; wrong files and taken ports are one line."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.api.harness import TINY, body_of, read_events
from tests.certificates import self_signed
from tests.reliability.processes.command import Command


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) for localhost."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    self_signed(certificate, key, "localhost", "IP:127.0.0.1")
    return certificate, key


async def test_https_on_the_port_and_nothing_older(tmp_path: Path, files: tuple[Path, Path]) -> None:
    certificate, key = files
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with Command(tmp_path, 1, tls={"certificate": str(certificate), "key": str(key)}) as gateway:
        gateway.scheme = "https"
        assert (await gateway.call("GET", "/health", ssl=trusting)).json == {"status": "ok"}
        assert (await gateway.operations("/health")).json == {"status": "ok"}
        url = f"https://127.0.0.1:{gateway.port}/v1/chat/completions"
        async with gateway.session.post(url, json=body_of("Hello", {"stream": True}), ssl=trusting) as response:
            assert (await read_events(response)).done
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await gateway.call("GET", "/health")
        old = ssl.create_default_context(cafile=str(certificate))
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(aiohttp.ClientConnectorError):
            await gateway.call("GET", "/health", ssl=old)
        gateway.scheme = "http"
        with pytest.raises(aiohttp.ClientError):
            await gateway.call("GET", "/health")
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=trusting)
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.close()
        gateway.scheme = "https"
        assert (await gateway.call("GET", "/health", ssl=trusting)).status == 200, "after the strange ones too"


async def served_certificate(port: int) -> bytes:
    """In DER, as a new connection sees it."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=anyone)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(found)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_renewed_certificate_is_served_after_a_reload_and_a_broken_one_never(
    tmp_path: Path, workers: int
) -> None:
    pairs = [(tmp_path / f"cert{i}.pem", tmp_path / f"key{i}.pem") for i in range(2)]
    for pair in pairs:
        self_signed(*pair, "localhost", "IP:127.0.0.1")
    old, new = (ssl.PEM_cert_to_DER_cert(certificate.read_text()) for certificate, _ in pairs)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(certificate_from: Path, key_from: Path) -> None:
        shutil.copy(certificate_from, certificate)
        shutil.copy(key_from, key)

    put(*pairs[0])
    async with Command(tmp_path, workers, tls={"certificate": str(certificate), "key": str(key)}) as gateway:

        async def reloaded(said: str, times: int = workers) -> None:
            before = gateway.log.count(said)
            gateway.process.send_signal(signal.SIGHUP)

            async def true() -> bool:
                return gateway.log.count(said) == before + times

            await gateway.until(true)

        async def all_serve(wanted: bytes) -> bool:
            return {await served_certificate(gateway.port) for _ in range(10 * workers)} == {wanted}

        assert await all_serve(old)
        trusting = ssl.create_default_context(cafile=str(pairs[0][0]))
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=trusting)
        put(*pairs[1])
        await reloaded("is reloaded; changed: the certificate")
        assert await all_serve(new)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200"), "a connection made before goes on"
        writer.close()
        for broken in ((pairs[0][0], pairs[1][1]), (gateway.config, pairs[1][1]), (Path("/dev/null"), pairs[1][1])):
            put(*broken)
            await reloaded("the certificate read before stays in use")
            assert await all_serve(new)
        put(*pairs[1])
        await reloaded("is reloaded; changed: nothing")


async def test_a_client_that_leaves_waiting_requests_behind_is_noticed(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    """The end of its bytes is behind the waiting requests, which nobody reads yet, and TLS cannot be half-closed."""
    certificate, key = files
    trusting = ssl.create_default_context(cafile=str(certificate))
    body = orjson.dumps(body_of("Hi", {"max_tokens": 100_000}))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    request = head.encode() + b"\r\n\r\n" + body
    async with Command(tmp_path, 1, tls={"certificate": str(certificate), "key": str(key)}) as gateway:
        gateway.engine.script([{"pieces": ["x "] * 5000, "delay_ms": 20}])
        plain = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", gateway.port))
        client = await asyncio.to_thread(trusting.wrap_socket, plain, server_hostname="localhost")
        client.sendall(request)

        async def runs() -> bool:
            return bool(gateway.engine.running)

        async def aborted() -> bool:
            return len(gateway.engine.aborts()) == 1

        await gateway.until(runs)
        for _ in range(3):
            client.sendall(request)
            await asyncio.sleep(0.1)
        client.close()
        await gateway.until(aborted, 20)
        assert len(gateway.engine.requests()) == 1


async def test_a_client_that_never_finishes_its_handshake_is_dropped(tmp_path: Path, files: tuple[Path, Path]) -> None:
    """Symptom: each held a connection for a minute, whatever the limit on headers."""
    certificate, key = map(str, files)
    settings = {"tls": {"certificate": certificate, "key": key}, "server_header_timeout_s": 0.5}
    async with Command(tmp_path, 1, **settings) as gateway:
        for said in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(said)
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()


def command(tmp_path: Path, **settings: Any) -> Any:
    import json

    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"model_path": str(TINY), "port": 0, **settings}))
    return CliRunner().invoke(app, ["gateway", "--config", str(config)])


@pytest.mark.parametrize("workers", [1, 2])
def test_files_that_cannot_be_used_are_one_clear_line(
    tmp_path: Path, files: tuple[Path, Path], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.commands.serve.configure", lambda settings: None)
    certificate, key = map(str, files)
    (tmp_path / "text.pem").write_text("no certificate")
    wrong = {
        str(tmp_path / "none.pem"): (certificate, str(tmp_path / "none.pem")),
        "cannot be used": (str(tmp_path / "text.pem"), key),
        "certificate and key": (certificate, None),
    }
    for said, (c, k) in wrong.items():
        result = command(tmp_path, tls={"certificate": c, "key": k}, workers=workers)
        assert result.exit_code in (1, 2) and said in result.output and "Traceback" not in result.output, result.output


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("which", ["port", "operations"])
def test_a_taken_port_is_one_clear_line(
    tmp_path: Path, workers: int, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.commands.serve.configure", lambda settings: None)
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # another gateway's, that would share it
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        taken = {"port": port} if which == "port" else {"operations": {"port": port}}
        result = command(tmp_path, workers=workers, **taken)
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in result.output and "Traceback" not in result.output

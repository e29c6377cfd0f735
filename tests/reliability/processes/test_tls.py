"""HTTPS on the port of a real `catalejo gateway`, plain HTTP on the second; wrong files and taken ports are one line."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
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

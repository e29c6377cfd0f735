"""A certificate for pictures.example, made once per run by the openssl command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=pictures.example"]
    command += ["-addext", "subjectAltName=DNS:pictures.example"]
    subprocess.run(command, check=True, capture_output=True)
    return key, certificate


@pytest.fixture
def tls(tls_files: tuple[Path, Path]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(for the server, for a client that trusts it)"""
    key, certificate = tls_files
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    return serving, ssl.create_default_context(cafile=str(certificate))

"""A certificate for pictures.example, made once per run by the openssl command."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.certificates import self_signed


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    self_signed(certificate, key, "pictures.example", "DNS:pictures.example")
    return key, certificate


@pytest.fixture
def tls(tls_files: tuple[Path, Path]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(for the server, for a client that trusts it)"""
    key, certificate = tls_files
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    return serving, ssl.create_default_context(cafile=str(certificate))

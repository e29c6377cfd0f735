"""Self-signed certificates for the tests of TLS, by the openssl command; a test that needs one is skipped without it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(certificate: Path, key: Path, name: str, alternative: str | None = None) -> None:
    """Writes both PEM files. `alternative`: a subjectAltName such as "DNS:localhost" or "IP:127.0.0.1"."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}"]
    if alternative is not None:
        command += ["-addext", f"subjectAltName={alternative}"]
    subprocess.run(command, check=True, capture_output=True)

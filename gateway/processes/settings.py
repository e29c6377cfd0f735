"""Settings of the process model: the listening port's certificate, the second port."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104
SEVERAL: Final = {"": EVERYWHERE, "localhost": ("127.0.0.1", "::1")}
"""Names that stand for more than one address."""


class TlsSettings(BaseModel):
    """HTTPS on the listening port. Both files absent: HTTP."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    certificate: Path | None = Field(default=None, description="PEM: the server's certificate, then its chain.")
    key: Path | None = Field(default=None, description="PEM: the certificate's private key.")
    key_password: SecretStr | None = Field(default=None, description="Of an encrypted key.")
    minimum_version: Literal["1.2", "1.3"] = Field(default="1.2", description="Older TLS is refused.")

    @model_validator(mode="after")
    def _both(self) -> TlsSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are given together or not at all")
        return self

    @property
    def enabled(self) -> bool:
        return self.certificate is not None


class OperationsSettings(BaseModel):
    """A second port, plain HTTP and without keys, for whoever runs the gateway: /health, /ready, /metrics, /admin, /debug.
    With it the main port serves neither /metrics nor /admin."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    host: str = Field(default="127.0.0.1", description="Address the second port listens on.")
    port: int | None = Field(default=None, ge=0, le=65535, description="Absent: no second port.")
    debug: bool = Field(
        default=False,
        description="/debug/tasks and /debug/stacks: what every task and thread does now; /debug/loop: how late its loop is.",
    )


def overlap(one: str, other: str) -> bool:
    """Whether one port cannot be listened on at both hosts. No name is looked up: two unlike names are two places."""
    return any(_same(a, b) for a in SEVERAL.get(one.lower(), (one,)) for b in SEVERAL.get(other.lower(), (other,)))


def _same(one: str, other: str) -> bool:
    try:
        a, b = ip_address(one), ip_address(other)
    except ValueError:
        return one.lower() == other.lower() or one in EVERYWHERE or other in EVERYWHERE
    return a == b or (a.version == b.version and (a.is_unspecified or b.is_unspecified))

"""Settings of the process model: the listening port's certificate, the second port."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator


class TlsSettings(BaseModel):
    """HTTPS on the listening port. Both files absent: HTTP."""

    model_config = ConfigDict(extra="forbid")

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

    model_config = ConfigDict(extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address the second port listens on.")
    port: int | None = Field(default=None, ge=0, le=65535, description="Absent: no second port.")
    debug: bool = Field(
        default=False, description="/debug/tasks and /debug/stacks: what every task and thread does now."
    )

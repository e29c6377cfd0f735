"""Settings of the upstream room."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class EngineTls(BaseModel):
    """How https engines are spoken to; their certificates are always checked."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    ca: Path | None = Field(
        default=None, description="PEM file that engines' certificates must lead to; None: the system's."
    )
    certificate: Path | None = Field(
        default=None, description="PEM file shown to engines that ask for one, with its chain."
    )
    key: Path | None = Field(default=None, description="Its key; None: it is in the certificate's file.")
    server_name: str | None = Field(
        default=None, description="Name that certificates must carry; None: the URL's host."
    )

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("key is given without certificate")
        return self


class UpstreamSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    connect_timeout_s: float = Field(default=5.0, gt=0, description="Longest wait for a connection, TLS included.")
    accept_timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="Longest wait for the engine to accept a request; stock SGLang does after prefill.",
    )
    first_token_timeout_s: float = Field(
        default=900.0,
        gt=0,
        description="Longest time from sending a request to its first token: queue and prefill there.",
    )
    token_timeout_s: float = Field(default=120.0, gt=0, description="Longest time between two tokens of an answer.")
    total_timeout_s: float = Field(
        default=7200.0,
        gt=0,
        description="Longest time from first sending a request to its last token, other engines included.",
    )
    idle_timeout_s: float = Field(
        default=60.0, gt=0, description="Longest silence on a stream; engines send keep-alive lines."
    )
    pool_idle_s: float = Field(
        default=4.0, gt=0, description="Idle connections are dropped before the engine does (uvicorn: 5)."
    )
    tls: EngineTls = Field(
        default_factory=EngineTls, description="For engines with https URLs without `tls` of their own."
    )
    abort_wait_s: float = Field(
        default=1.0, ge=0, description="Wait for the engine's usage after a stop string matched."
    )

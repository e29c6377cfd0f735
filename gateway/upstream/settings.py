"""Settings of the upstream room."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class UpstreamSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    connect_timeout_s: float = Field(default=5.0, gt=0)
    accept_timeout_s: float = Field(default=600.0, gt=0, description="Longest wait for the engine to accept a request.")
    idle_timeout_s: float = Field(
        default=60.0, gt=0, description="Longest silence on a stream; engines send keep-alive lines."
    )
    pool_idle_s: float = Field(
        default=4.0, gt=0, description="Idle connections are dropped before the engine does (uvicorn: 5)."
    )
    abort_wait_s: float = Field(
        default=1.0, ge=0, description="Wait for the engine's usage after a stop string matched."
    )

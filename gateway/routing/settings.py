"""Settings of the routing room."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class EngineEndpoint(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: str = Field(pattern=r"^https?://[^\s]+$")
    name: str | None = Field(default=None, description="Label in metrics; engine-0, engine-1, ... when absent.")
    token: SecretStr | None = Field(default=None, description="Bearer token; `engine_token` when absent.")


class RoutingSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    health_interval_s: float = Field(default=2.0, gt=0)
    health_timeout_s: float = Field(default=3.0, gt=0)
    breaker_failures: int = Field(default=3, ge=1, description="Failures in a row that open the breaker.")
    breaker_open_s: float = Field(default=10.0, gt=0)
    known_media_bytes: int = Field(default=4 << 30, ge=0, description="What each engine's store of rows holds.")

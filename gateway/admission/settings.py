"""Settings of the admission room."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class AdmissionSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    api_keys: list[SecretStr] = Field(default_factory=list, description="Empty: no authentication.")
    max_in_flight: int = Field(default=1024, ge=1)
    max_queue: int = Field(default=1024, ge=0)
    queue_timeout_s: float = Field(default=60.0, gt=0)

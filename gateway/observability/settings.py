"""Settings of the observability room."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class ObservabilitySettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    access_log: bool = True

"""Settings of the observability room."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ObservabilitySettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    access_log: bool = True
    record_blocks: bool = Field(
        default=False,
        description="Adds the names of the prompt's 512-token blocks to the access log, so that `catalejo loadtest replay` "
        "can send the same traffic with the same prefix reuse. Names are hashes; no text is kept.",
    )

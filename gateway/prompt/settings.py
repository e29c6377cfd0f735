"""Settings of the prompt room."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PromptSettings(BaseModel):
    """How conversations become prompts. docs/prompt.md explains each rule."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    later_system: Literal["merge", "refuse"] = Field(
        default="merge",
        description="System and developer messages after the first: append them to the one developer turn the model "
        "has, or refuse the request with 400. (The template would drop them silently.)",
    )
    max_json_depth: int = Field(
        default=64,
        ge=4,
        le=100,
        description="Deepest nesting of tool definitions. Deeper past arguments are text.",
    )
    run_cache_bytes: int = Field(
        default=64 << 20,
        ge=0,
        description="Memory for the token ids of text seen before, per process and apart by tenant; 0 keeps none.",
    )
    max_media_parts: int = Field(default=1024, ge=0, description="Most images and videos of one conversation.")

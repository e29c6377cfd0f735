"""Settings of the api room: what clients may send, and the documented choices where clients disagree."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ThinkingMode = Literal["enabled", "disabled", "adaptive"]


class ApiSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_body_bytes: int = Field(default=64 << 20, ge=1024, description="Larger bodies are a 413.")
    drain_body_bytes: int = Field(
        default=8 << 20, ge=0, description="Read and dropped after a 413, so the client sees it."
    )
    offload_bytes: int = Field(default=256 << 10, ge=0, description="Larger bodies are parsed off the event loop.")
    offload_prompt_bytes: int = Field(
        default=16 << 10, ge=0, description="Prompts of larger bodies are rendered and tokenized off the event loop."
    )
    max_text_bytes: int = Field(
        default=16 << 20, ge=1024, description="Most text of one prompt, media aside; more is a 400."
    )
    max_choices: int = Field(default=128, ge=1, description="Most answers of one request: prompts times n.")
    body_idle_s: float = Field(default=30.0, gt=0, description="A body of which nothing comes for so long is a 408.")
    body_min_bytes_per_s: int = Field(
        default=4096, ge=1, description="A body slower than this, after body_idle_s, is a 408."
    )
    keep_alive_s: float = Field(default=15.0, gt=0, description="SSE comment after this much silence.")
    client_stall_s: float = Field(
        default=300.0, gt=0, description="A client that takes less than 1 KiB/s for so long has left."
    )
    max_n: int = Field(default=16, ge=1, le=128, description="Most answers to one prompt (`n`).")
    max_messages: int = Field(default=16384, ge=1, description="Most messages of one conversation.")
    max_tools: int = Field(default=1024, ge=1, description="Most tools of one request.")
    default_max_tokens: int | None = Field(default=None, ge=1, description="None: what is left of the context.")
    default_thinking: ThinkingMode | None = Field(
        default=None, description="None: the template's own default (adaptive)."
    )
    use_generation_config: bool = Field(
        default=True, description="Sampling defaults from the checkpoint's generation_config.json."
    )
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = Field(
        default="reasoning_content", description="Where the thinking stands in a message."
    )
    named_tool_finish_reason: Literal["stop", "tool_calls"] = Field(
        default="stop", description="finish_reason of a call that `tool_choice` named; OpenAI says stop."
    )
    empty_tools: Literal["ignore", "refuse"] = Field(
        default="ignore", description="What `tools: []` is: no tools, or a 400."
    )
    strict_fields: bool = Field(default=False, description="Refuse unknown fields with a 400 instead of ignoring them.")

"""Request fields that chat completions and completions share, with their limits. Types are strict: "0.5" is no number.

`null` means absent everywhere. Unknown fields land in `model_extra`; gateway.api.generation.fields says what happens.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_STOP_STRINGS: Final = 16
MAX_STOP_CHARACTERS: Final = 1024
INT64: Final = 2**63


class Model(BaseModel):
    """Base of everything nested: unknown members are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), frozen=False)


class StreamOptions(Model):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[int, Field(ge=0, le=2**32 - 1)]


class JsonSchema(Model):
    name: str | None = Field(default=None, max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextFormat(Model):
    type: Literal["text"]


class JsonObjectFormat(Model):
    type: Literal["json_object"]


class JsonSchemaFormat(Model):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class GenerationRequest(Model):
    """What both families take. `model_extra` holds the unknown fields."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    model: str = Field(min_length=1, max_length=512)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, Bias] | None = Field(default=None, max_length=1024)
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=64)
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    priority: int | None = Field(default=None, ge=-1000, le=1000)
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = None
    user: str | None = Field(default=None, max_length=512)
    metadata: dict[str, Any] | None = Field(default=None, max_length=16)
    strict_fields: bool | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

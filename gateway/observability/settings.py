"""Settings of the observability room."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr

Amount = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel):
    """Of one model; tokens per million, media per item."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    input: Amount = Field(default=Decimal(0), description="A million prompt tokens that were computed.")
    cached_input: Amount | None = Field(
        default=None, description="A million prompt tokens from the prefix cache; absent: as `input`."
    )
    output: Amount = Field(default=Decimal(0), description="A million tokens of answers, thinking included.")
    image: Amount = Field(default=Decimal(0), description="One picture.")
    video: Amount = Field(default=Decimal(0), description="One video.")


class LedgerSettings(BaseModel):
    """The usage ledger: docs/operations.md."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    path: Path | None = Field(
        default=None, description="SQLite file, or folder of JSON lines; its folder is made. None: no ledger."
    )
    format: Literal["sqlite", "jsonl"] = Field(
        default="sqlite", description="sqlite: sums per minute; jsonl: one line per request, one file per day."
    )
    flush_s: float = Field(default=1.0, gt=0, le=60, description="At most so much is lost when the process is killed.")
    retention_days: int = Field(default=400, ge=1, description="Older rows and files are removed.")
    currency: str = Field(default="USD", min_length=1, max_length=16, description="Of the prices; only shown.")
    prices: dict[str, Price] = Field(
        default_factory=dict,
        description="By served model name, for `catalejo usage`; tokens per million, media per item.",
    )


class TracingSettings(BaseModel):
    """OpenTelemetry traces over OTLP/HTTP; needs the extra `tracing`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    endpoint: HttpUrl | None = Field(
        default=None, description="Collector, e.g. http://otel-collector:4318 (/v1/traces is added). None: no traces."
    )
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="Sent to the collector.")
    sample_ratio: float = Field(
        default=1.0, ge=0, le=1, description="Share of traces that begin here; a caller's own decision is kept."
    )
    service_name: str = Field(default="catalejo-gateway", min_length=1, description="`service.name` of its spans.")
    timeout_s: float = Field(default=5.0, gt=0, description="Of one export.")


class ObservabilitySettings(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lesser lines are left out."
    )
    log_format: Literal["json", "text"] = Field(
        default="json", description="One JSON object per line, or text for people."
    )
    access_log: bool = Field(default=True, description="One line for each request, at level info.")
    record_blocks: bool = Field(
        default=False,
        description="Adds the names of the prompt's 512-token blocks to the access log, so that `catalejo loadtest replay` "
        "can send the same traffic with the same prefix reuse. Names are hashes; no text is kept.",
    )
    log_prompt_characters: int = Field(
        default=0,
        ge=0,
        description="Adds so many first characters of the rendered prompt to the access log; media show as placeholders. "
        "0: no text is logged.",
    )
    ledger: LedgerSettings = Field(default_factory=LedgerSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)

"""Settings of the admission room: tenants, their keys and limits, and the places all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
HASH = r"^blake2b:[0-9a-f]{64}$"
ScopeName = Literal["inference", "admin", "metrics"]


class Limits(BaseModel):
    """None: no limit. Minutes are sliding: a limit refills continuously, it does not reset at the full minute."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    requests_per_minute: int | None = Field(default=None, ge=1, description="Requests of one tenant.")
    tokens_per_minute: int | None = Field(default=None, ge=1, description="Prompt and answer tokens together.")
    media_per_minute: int | None = Field(default=None, ge=1, description="Pictures and videos, cached ones too.")
    max_in_flight: int | None = Field(default=None, ge=1, description="Requests of one tenant at the same time.")
    max_queue: int | None = Field(default=None, ge=0, description="Waiting requests of one tenant.")


class Tenant(Limits):
    """A customer or team: several keys, one account. Limits that are absent come from `default_limits`."""

    name: str = Field(pattern=NAME, description="Label in metrics, salt of the prefix cache.")
    api_keys: list[SecretStr] = Field(default_factory=list, description="Plain keys; prefer hashes in files.")
    api_key_hashes: list[str] = Field(default_factory=list, description="From `catalejo hash-key`: blake2b:<64 hex>.")
    priority: int = Field(default=0, ge=-100, le=100, description="Higher goes first in the queue and the engine.")
    models: list[str] | None = Field(
        default=None, description="Names its keys may ask for; a model's own name allows its aliases. Absent: all."
    )
    scopes: list[ScopeName] = Field(
        default=["inference"],
        min_length=1,
        description="What its keys may do: `inference` (everything but the others), `admin` (/admin/*), `metrics`.",
    )

    @model_validator(mode="after")
    def _keys(self) -> Tenant:
        import re

        for text in self.api_key_hashes:
            if not re.fullmatch(HASH, text):
                raise ValueError(f"api_key_hashes of {self.name}: {text[:16]!r}... is not blake2b:<64 hex digits>")
        if not self.api_keys and not self.api_key_hashes:
            raise ValueError(f"tenant {self.name} has neither api_keys nor api_key_hashes")
        return self


class AdmissionSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    api_keys: list[SecretStr] = Field(default_factory=list, description="Keys that are tenants of their own.")
    tenants: list[Tenant] = Field(default_factory=list, description="No key at all: no authentication.")
    default_limits: Limits = Field(
        default_factory=Limits, description="For keys and tenants that have no limit of their own of that kind."
    )
    max_in_flight: int = Field(default=1024, ge=1, description="Requests of everybody at the same time.")
    max_queue: int = Field(default=1024, ge=0, description="Waiting requests of everybody.")
    queue_timeout_s: float = Field(default=60.0, gt=0, description="Who waits longer for a place gets a 503.")
    protect_metrics: bool = Field(
        default=True, description="With any key, /metrics needs one with the scope `metrics`; false: it needs none."
    )

    redis_url: SecretStr | None = Field(
        default=None,
        description="redis://host:6379/0, or rediss:// for TLS: limits that all replicas share. Absent: per gateway.",
    )
    redis_username: str | None = Field(default=None, description="For Redis with users; absent: its default user.")
    redis_password: SecretStr | None = Field(default=None, description="Beside the URL, for a secret of its own.")
    redis_ca_file: Path | None = Field(
        default=None, description="Who signed Redis's certificate; absent: the system's."
    )
    redis_prefix: str = Field(default="catalejo", pattern=r"^[A-Za-z0-9._:-]{1,64}$", description="Of every key there.")
    redis_timeout_s: float = Field(
        default=0.25, gt=0, le=10, description="No request waits longer for an answer of Redis."
    )
    redis_fail_open: bool = Field(
        default=True,
        description="While Redis is away: limits per gateway (true), or a 503 for what has a limit (false).",
    )
    redis_lease_s: float = Field(
        default=30.0, ge=1, description="Places of a gateway that died come back after so long; live ones are renewed."
    )

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("redis_url begins with redis://, rediss:// or unix://")
        return value

    @model_validator(mode="after")
    def _distinct(self) -> AdmissionSettings:
        names = [t.name for t in self.tenants]
        if len(names) != len(set(names)):
            raise ValueError("tenants: names must differ")
        if self.redis_ca_file is not None and not (self.redis_url and self._redis_tls):
            raise ValueError("redis_ca_file needs a redis_url that begins with rediss://")
        return self

    @property
    def has_keys(self) -> bool:
        """Without any the gateway is open to everybody."""
        return bool(self.api_keys or self.tenants)

    @property
    def _redis_tls(self) -> bool:
        return self.redis_url is not None and self.redis_url.get_secret_value().startswith("rediss://")

"""Settings of the admission room: tenants, their keys and limits, and the places all of them share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
HASH = r"^blake2b:[0-9a-f]{64}$"


class Limits(BaseModel):
    """None: no limit. Minutes are sliding: a limit refills continuously, it does not reset at the full minute."""

    model_config = ConfigDict(extra="forbid")

    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1, description="Prompt and answer tokens together.")
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
    model_config = ConfigDict(extra="forbid")

    api_keys: list[SecretStr] = Field(default_factory=list, description="Keys that are tenants of their own.")
    tenants: list[Tenant] = Field(default_factory=list, description="No key at all: no authentication.")
    default_limits: Limits = Field(default_factory=Limits)
    max_in_flight: int = Field(default=1024, ge=1, description="Requests of everybody at the same time.")
    max_queue: int = Field(default=1024, ge=0, description="Waiting requests of everybody.")
    queue_timeout_s: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _distinct(self) -> AdmissionSettings:
        names = [t.name for t in self.tenants]
        if len(names) != len(set(names)):
            raise ValueError("tenants: names must differ")
        return self

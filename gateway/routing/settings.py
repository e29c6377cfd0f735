"""Settings of the routing room."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from gateway.upstream.settings import EngineTls

PolicyName = Literal["round_robin", "power_of_two", "least_load", "consistent_hash", "prefix_aware"]


class EngineEndpoint(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    url: str = Field(
        pattern=r"^https?://[^\s]+$",
        description="http(s)://host:port; `user:password@` before the host is sent where there is no token.",
    )
    name: str | None = Field(default=None, description="Label in metrics; engine-0, engine-1, ... when absent.")
    token: SecretStr | None = Field(default=None, description="Bearer token; `engine_token` when absent.")
    tls: EngineTls | None = Field(default=None, description="For https; `upstream.tls` when absent.")
    server_name: str | None = Field(
        default=None, description="Name in its certificate when TLS settings give none; the URL's host when absent."
    )

    @field_validator("url")
    @classmethod
    def _origin(cls, value: str) -> str:
        """No message quotes the URL: a password may be in it."""
        try:
            parts = urlsplit(value)
            host = parts.hostname
        except ValueError:
            raise ValueError("the host of the URL is none; an IPv6 address is written http://[::1]:30000") from None
        try:
            port = parts.port
        except ValueError:
            port = 0
        if not host:
            raise ValueError("the URL has no host")
        if port == 0:
            raise ValueError("the port of the URL is a number from 1 to 65535")
        if parts.query or parts.fragment:
            raise ValueError("the URL ends with its path: nothing with ? or # may follow")
        return value

    def named_for(self, model: str) -> EngineEndpoint:
        """With a name, where it has none: of the model and its address, which unlike its place in a list stays when others come
        and go."""
        if self.name:
            return self
        parts = urlsplit(self.url)
        place = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")
        return self.model_copy(update={"name": f"{model}/{place}"})


class OutlierSettings(BaseModel):
    """When an engine is far from its peers; needs three engines (routing/outliers.py)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    enabled: bool = Field(default=True, description="Whether engines far from their peers are left alone for a while.")
    window_s: float = Field(default=60.0, gt=0, description="Answers of this long are judged.")
    min_requests: int = Field(default=20, ge=2, description="With fewer in the window an engine is not judged.")
    error_excess: float = Field(
        default=0.3, gt=0, le=1, description="Failing this share of answers more often than the mean of its peers."
    )
    latency_factor: float = Field(
        default=5.0,
        gt=1,
        description="First tokens this many times later than its peers' median, prompt length reckoned in.",
    )
    ejection_s: float = Field(
        default=30.0, gt=0, description="Left alone so long, times the ejections in a row, up to ten."
    )
    max_share: float = Field(default=0.34, ge=0, le=1, description="No more than this share of engines at a time.")


class RoutingSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    policy: PolicyName = Field(default="prefix_aware", description="How a worker is chosen; see docs/operations.md.")
    block_tokens: int = Field(default=256, ge=16, le=65536, description="Tokens per block of the prefix index.")
    index_tokens_per_worker: int = Field(
        default=4_000_000, ge=1, description="Prefix tokens one engine is believed to cache, until it tells its size."
    )
    kv_events: bool = Field(
        default=True, description="Follow the KV events of engines that publish them; the index is then exact."
    )
    new_weight: float = Field(default=16.0, ge=0, description="Cost of a prompt token that is not cached there.")
    resident_weight: float = Field(default=0.02, ge=0, description="Cost of a context token of a running request.")
    recent_weight: float = Field(default=1.5, ge=0, description="Cost of a token computed there of late.")
    recent_s: float = Field(default=600.0, gt=0, description="Half-life of 'of late'.")
    imbalance: float = Field(default=4.0, ge=1, description="A worker gets no more than this times the mean in flight.")
    hash_load_bound: float = Field(default=1.25, gt=1, description="Bounded load of consistent_hash.")
    health_interval_s: float = Field(default=2.0, gt=0, description="How often engines are asked for their health.")
    health_timeout_s: float = Field(default=3.0, gt=0, description="An answer later than this counts as silence.")
    health_failures: int = Field(default=3, ge=1, description="Unanswered checks in a row that make an engine lost.")
    breaker_failures: int = Field(default=3, ge=1, description="Failures in a row that open the breaker.")
    breaker_open_s: float = Field(default=10.0, gt=0, description="How long an open breaker keeps requests away.")
    outliers: OutlierSettings = Field(default_factory=OutlierSettings)
    known_media_bytes: int = Field(default=4 << 30, ge=0, description="What each engine's store of rows holds.")

"""Settings of discovery: where the list of engines comes from, besides `engines`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Scheme = Literal["http", "https"]


class FileDiscovery(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    path: Path = Field(description="YAML or JSON list of engines, as `engines`; replace it by a rename.")
    interval_s: float = Field(default=2.0, gt=0, description="Time between two looks at the file.")


class DnsDiscovery(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=253, description="Every A and AAAA record is an engine.")
    port: int = Field(ge=1, le=65535, description="Port of every engine.")
    scheme: Scheme = Field(default="http", description="How the engines are spoken to.")
    interval_s: float = Field(default=5.0, gt=0, description="Time between two lookups.")
    keep_s: float = Field(default=300.0, ge=0, description="How long the last answer holds while lookups fail.")


class EndpointSliceDiscovery(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    service: str = Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", description="Name of the engines' Service.")
    namespace: str | None = Field(
        default=None, pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", description="None: the gateway's own."
    )
    port: int | str | None = Field(default=None, description="Number or name; None: the Service's only port.")
    scheme: Scheme = Field(default="http", description="How the engines are spoken to.")
    api_url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$", description="None: the cluster's own API.")
    credentials: Path = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="Folder with `token`, `ca.crt` and `namespace`; read again whenever it is needed.",
    )

    @field_validator("port")
    @classmethod
    def _number(cls, value: int | str | None) -> int | str | None:
        return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


class DiscoverySettings(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    source: Literal["static", "file", "dns", "endpointslices"] = Field(
        default="static", description="Where engines are found besides those in `engines`; static: nowhere else."
    )
    file: FileDiscovery | None = Field(default=None, description="A file that is watched.")
    dns: DnsDiscovery | None = Field(default=None, description="The addresses of a name: a headless Service.")
    endpointslices: EndpointSliceDiscovery | None = Field(
        default=None, description="The ready endpoints of a Service, from the Kubernetes API."
    )
    max_engines: int = Field(default=256, ge=1, le=4096, description="More than these are not used, and it is logged.")

    @model_validator(mode="after")
    def _its_part_is_there(self) -> Self:
        if self.source != "static" and getattr(self, self.source) is None:
            raise ValueError(f"source is {self.source}, so discovery.{self.source} must be given")
        return self

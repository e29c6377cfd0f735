"""Every knob of the media room, with its default and its reason. docs/security.md lists the same defaults."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MIB = 1 << 20


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, use_attribute_docstrings=True)


class FetchSettings(_Model):
    """How a stranger's URL is fetched."""

    enabled: bool = True
    """False: no URL is fetched, only data: URLs and uploaded files are taken."""
    ports: tuple[int, ...] = (80, 443)
    """Ports that a URL may name."""
    allow_hosts: tuple[str, ...] = ()
    """When not empty, only these hosts: "example.com", or "*.example.com" for its subdomains."""
    deny_hosts: tuple[str, ...] = ()
    """Hosts never to be asked, written as in `allow_hosts`."""
    deny_networks: tuple[str, ...] = ()
    """More networks never to be reached, in CIDR: the operator's own public ranges, a NAT64 prefix of one's own."""
    private_endpoints: tuple[str, ...] = ()
    """"host:port" of an internal store that pictures may come from although its address is not public."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """For one connection, TLS included."""
    idle_timeout_s: float = Field(default=10.0, gt=0)
    """Longest silence, also before the response header."""
    total_timeout_s: float = Field(default=30.0, gt=0)
    """For one part: resolving, every redirect and the body together."""
    min_rate_bytes_s: int = Field(default=1024, ge=0)
    """A body slower than this is given up, after `min_rate_grace_s`; 0 waits."""
    min_rate_grace_s: float = Field(default=5.0, ge=0)
    """How long a body may be slower than `min_rate_bytes_s` at its start."""
    max_redirects: int = Field(default=5, ge=0, le=20)
    """Redirects of one URL; each target is checked as the first."""
    max_url_bytes: int = Field(default=8192, ge=256)
    """A longer URL is a 400."""
    max_concurrent: int = Field(default=1024, ge=1)
    """Fetches at the same time, of everybody."""
    max_concurrent_per_host: int = Field(default=32, ge=1)
    """Fetches at the same time from one host."""
    max_concurrent_per_tenant: int = Field(default=256, ge=1)
    """Fetches at the same time for one tenant."""
    resolver_threads: int = Field(default=64, ge=1)
    """Threads that ask for addresses."""
    user_agent: str = "Catalejo/0.1 (media fetcher of an inference gateway)"
    """What picture servers are told."""

    @field_validator("deny_networks")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for net in value:
            ipaddress.ip_network(net)
        return value

    @field_validator("private_endpoints")
    @classmethod
    def _endpoints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            host, _, port = entry.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f'private_endpoints: {entry!r} is not "host:port"')
        return tuple(entry.lower() for entry in value)

    @field_validator("allow_hosts", "deny_hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host.lower().rstrip(".") for host in value)


class MediaBudget(_Model):
    """What one request may ask for."""

    max_images: int = Field(default=128, ge=0)
    """Pictures of one request."""
    max_videos: int = Field(default=4, ge=0)
    """Videos of one request."""
    max_total_bytes: int = Field(default=512 * MIB, ge=1)
    """Encoded bytes of all parts, however they came and also when the cache had them."""
    max_total_pixels: int = Field(default=1_000_000_000, ge=1)
    """Decoded pixels of all pictures before resizing."""
    max_total_tokens: int = Field(default=524_288, ge=1)
    """Vision tokens: half of M3's context."""


class FileSettings(_Model):
    """POST /v1/files."""

    enabled: bool = True
    """False: nothing can be uploaded."""
    location: str = "local"
    """"local": a private temporary folder. Else a folder, or an fsspec URL such as "s3://bucket/prefix"."""
    max_file_bytes: int = Field(default=256 * MIB, ge=1)
    """A larger file is a 413."""
    max_files_per_tenant: int = Field(default=1000, ge=1)
    """Files one tenant may keep."""
    max_bytes_per_tenant: int = Field(default=4096 * MIB, ge=1)
    """Bytes one tenant may keep."""
    upload_timeout_s: float = Field(default=300.0, gt=0)
    """One upload may take so long."""
    uploads_at_once: int = Field(default=16, ge=1)
    """Of all tenants; one tenant may have half of them."""
    ttl_s: float = Field(default=86_400.0, gt=0)
    """A file is deleted so long after its upload."""
    sweep_every_s: float = Field(default=600.0, gt=0)
    """How often files past their time are looked for."""


class MediaSettings(_Model):
    fetch: FetchSettings = FetchSettings()
    """How URLs are fetched."""
    budget: MediaBudget = MediaBudget()
    """What one request may ask for."""
    tenant_budgets: dict[str, MediaBudget] = Field(default_factory=dict)
    """Tenant name: its own budget, whole, instead of `budget`."""
    files: FileSettings = FileSettings()
    """Uploads."""

    rows: Literal["u8", "f32"] = "u8"
    """What engines are sent of pictures: bytes that they normalise, or float32, which is four times as much."""
    apply_exif: bool = True
    """Turn pictures as their EXIF orientation says."""
    max_image_bytes: int = Field(default=64 * MIB, ge=1)
    """Encoded bytes of one picture."""
    max_image_pixels: int = Field(default=100_000_000, ge=1)
    """Decoded pixels of one picture."""
    max_video_bytes: int = Field(default=256 * MIB, ge=1)
    """Encoded bytes of one video."""

    image_threads: int = Field(
        default_factory=lambda: max(1, len(os.sched_getaffinity(0))),
        ge=1,
        json_schema_extra={"default": "one for each CPU"},
    )
    """Threads that decode pictures."""
    image_queue: int = Field(default=512, ge=1)
    """Images waiting for a thread; one more is a 503 with Retry-After."""
    video_workers: int = Field(default=1, ge=0)
    """Processes that decode videos; 0 refuses videos."""
    video_queue: int = Field(default=8, ge=1)
    """Videos waiting for a process; one more is a 503 with Retry-After."""
    parts_at_once: int = Field(default=8, ge=1)
    """Parts of one request in work at the same moment."""
    max_requests: int = Field(default=2048, ge=1)
    """Requests whose media is being prepared at the same moment; one more is a 503 with Retry-After."""
    max_parts_per_tenant: int = Field(default=1024, ge=1)
    """Parts of one tenant's running requests together; one more request is a 429 with Retry-After."""
    max_bytes_in_flight: int = Field(default=512 * MIB, ge=MIB)
    """Encoded bytes held in memory by all requests between arrival and decoding. Bodies wait their turn."""

    cache_bytes: int = Field(default=1024 * MIB, ge=0)
    """Memory for prepared media; 0 keeps none."""
    cache_scope: Literal["tenant", "shared"] = "tenant"
    """"shared": one tenant's timing may tell whether another tenant sent the same picture."""
    url_ttl_s: float = Field(default=900.0, ge=0)
    """How long a URL is believed to hold the same picture. `Cache-Control` of the answer can only shorten it."""
    negative_ttl_s: float = Field(default=10.0, ge=0)
    """How long a refused picture is remembered as refused."""
    disk_cache_dir: Path | None = None
    """Folder for prepared media that memory has no room for; absent: none."""
    disk_cache_bytes: int = Field(default=4096 * MIB, ge=0)
    """How much that folder may hold."""

    def budget_of(self, tenant: str) -> MediaBudget:
        return self.tenant_budgets.get(tenant, self.budget)

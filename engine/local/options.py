"""What the embedded engine can be told. One dataclass; the command line and the tests fill the same fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from engine.wire import DEFAULT_MAX_BODY_BYTES

DType = Literal["auto", "float32", "bfloat16"]
LogLevel = Literal["critical", "error", "warning", "info", "debug"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Every field has a default but `model`. Sizes are in bytes, times in seconds, the rest counts."""

    model: str | Path
    """A checkpoint folder, or a hub name like `org/name` where there is a network."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 30000
    """Port to listen on; 0 takes a free one."""
    token: str | None = None
    """Bearer token that every call but /health must carry. None: open."""
    dtype: DType = "auto"
    """auto: float32 on a CPU, the checkpoint's own dtype on a GPU."""
    device: str = "auto"
    """auto: the first CUDA device if there is one, else the CPU. Or `cpu`, `cuda`, `cuda:1`."""
    threads: int | None = None
    """CPU threads for the model. None: one for a small model, whose steps are too short to share; else torch's choice."""
    msa_kernel: str = "auto"
    """Decode attention of the sparse layers. auto: the fastest kernel of engine.msa on a GPU where it fits, else torch. Or
    `torch`, or a kernel's name (`sm90`, `triton`, `reference`), which is then used or refused."""
    max_running: int = 64
    """Most choices that compute at the same time."""
    max_queue: int = 1024
    """Most choices that wait; a request that would pass this is refused with 503 `queue_full`."""
    chunk_tokens: int = 512
    """Most prompt tokens in one step. Bounds how long a long prompt can hold up running streams."""
    step_pairs: int | None = None
    """Most (prompt token, earlier token) pairs in one step, so that chunks shrink as a prompt gets long and a step's time
    stays bounded. None: 512 * 8192 on a CPU, no limit on a GPU."""
    kv_pages: int | None = None
    """Pages in the KV cache; a page holds one block of tokens (128 for M3). None: as many as `kv_bytes` holds."""
    kv_bytes: int = 1 << 30
    """Budget of the KV cache, used when `kv_pages` is None."""
    context_length: int | None = None
    """Longest prompt + output. None: the model's positions, or what the KV cache holds if that is less."""
    media_store_bytes: int = 1 << 30
    """Patch rows kept so that a gateway may send an item by its hash alone."""
    feature_cache_bytes: int = 256 << 20
    """Outputs of the vision tower kept for prompts still being prefilled."""
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """Largest request body, enforced while reading."""
    prefix_cache: bool = True
    """Reuse the pages of earlier prompts and answers."""
    keep_alive_s: float = 10.0
    """Longest silence in a stream; then an empty line is sent."""
    grace_s: float = 15.0
    """How long running requests may go on after SIGTERM or Ctrl-C before they are ended with `shutting_down`."""
    log_level: LogLevel = "info"
    """What is logged, at least."""

    def __post_init__(self) -> None:
        for name in ("max_running", "chunk_tokens", "kv_bytes", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("max_queue", "media_store_bytes", "feature_cache_bytes", "grace_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name in ("kv_pages", "threads", "context_length", "step_pairs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        for name, allowed in (("dtype", get_args(DType)), ("log_level", get_args(LogLevel))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        if self.keep_alive_s <= 0:
            raise ValueError(f"keep_alive_s is {self.keep_alive_s}; it must be positive")

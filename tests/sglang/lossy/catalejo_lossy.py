"""A prefix cache that somebody else made and nobody knows: `--radix-cache-backend lossy`."""

from __future__ import annotations

from typing import Any


def register() -> None:
    from sglang.srt.mem_cache.registry import register_radix_cache_backend

    register_radix_cache_backend("lossy", make)


def make(ctx: Any) -> Any:
    from sglang.srt.mem_cache.registry import create_unified_radix_cache
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    class LossyCache(UnifiedRadixCache): ...

    return create_unified_radix_cache(ctx, cache_class=LossyCache)

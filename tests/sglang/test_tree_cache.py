"""A cache outside the GPU must carry the index keys with K and V, or the server does not start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.sglang import hooks_model


def pool(**parts: Any) -> Any:
    return SimpleNamespace(**dict.fromkeys(hooks_model.POOLS) | parts)


M3 = pool(main_pool=object(), index_k_pool=object())


def cache(kind: str, held: tuple[Any, ...] | None = None, linker: Any = None) -> Any:
    """A cache of a class of that name; `held`: the device pools its controller copies."""
    made = type(kind, (), {})()
    made.linker = linker
    made.cache_controller = None
    if held is not None:
        entries = [SimpleNamespace(device_pool=one) for one in held]
        made.cache_controller = SimpleNamespace(mem_pool_host=SimpleNamespace(entries=entries))
    return made


def test_a_cache_on_the_gpu_needs_nothing() -> None:
    assert hooks_model.index_keys_lost(cache("UnifiedRadixCache"), M3) is None


def test_hicache_with_index_keys_is_served() -> None:
    whole = cache("UnifiedRadixCache", (M3.main_pool, M3.index_k_pool))
    assert hooks_model.index_keys_lost(whole, M3) is None


@pytest.mark.parametrize("held", [(M3.main_pool,), (M3.index_k_pool,), ()])
def test_hicache_without_one_of_them_is_refused(held: tuple[Any, ...]) -> None:
    lost = hooks_model.index_keys_lost(cache("UnifiedRadixCache", held), M3)
    assert lost is not None
    assert "--enable-hierarchical-cache" in lost
    assert "main_pool" in lost or "index_k_pool" in lost


def test_a_host_pool_that_is_not_a_group_is_refused() -> None:
    """SGLang's plain HiCache has one host pool, for K and V."""
    plain = cache("HiRadixCache", ())
    plain.cache_controller.mem_pool_host = object()
    assert "index_k_pool" in (hooks_model.index_keys_lost(plain, M3) or "")


@pytest.mark.parametrize("kind", ["LMCacheUnifiedRadixCache", "FlexKVRadixCache", "SomebodysCache"])
def test_a_cache_nobody_knows_is_refused_by_its_flag(kind: str) -> None:
    lost = hooks_model.index_keys_lost(cache(kind), M3) or ""
    assert kind in lost
    assert "--enable-lmcache" in lost


def test_a_linker_is_refused() -> None:
    assert hooks_model.index_keys_lost(cache("UnifiedRadixCache", linker=object()), M3) is not None


def test_hisparse_pools_count_too() -> None:
    parts = pool(main_pool=object(), dense_pool=object(), index_k_pool=object())
    lost = hooks_model.index_keys_lost(cache("UnifiedRadixCache", (parts.main_pool, parts.index_k_pool)), parts)
    assert lost is not None
    assert "dense_pool" in lost


@pytest.mark.parametrize("kind", ["LMCacheUnifiedRadixCache", "UnifiedRadixCache"])
def test_models_without_index_keys_are_none_of_our_business(kind: str) -> None:
    assert hooks_model.index_keys_lost(cache(kind, ()), object()) is None


def test_the_process_ends() -> None:
    allocator = SimpleNamespace(get_kvcache=lambda: M3)
    context = SimpleNamespace(params=SimpleNamespace(token_to_kv_pool_allocator=allocator))
    assert hooks_model.tree_cache(cache("UnifiedRadixCache"), context) is None
    with pytest.raises(SystemExit, match="refusing to serve"):
        hooks_model.tree_cache(cache("LMCacheUnifiedRadixCache"), context)

"""What is remembered, for how long, and what goes first."""

from __future__ import annotations

import pytest

from gateway.media.cache import ENTRY_OVERHEAD_BYTES, Entry, NegativeCache, PreparedCache, ReferenceCache
from gateway.media.metrics import MediaMetrics
from gateway.media.problems import MediaProblem
from gateway.media.types import PreparedMedia


def entry(size: int, name: str = "h") -> Entry:
    data = memoryview(bytes(size - ENTRY_OVERHEAD_BYTES))
    return Entry(PreparedMedia("image", name, (1, 4, 4), 4, "u8", 1, data), 100, 3136, 0.01)


def test_prepared_media_is_bounded_in_bytes_and_least_recently_used_goes_first() -> None:
    metrics = MediaMetrics()
    cache = PreparedCache(10_000, metrics)
    for name in ("a", "b", "c"):
        cache.put(("t", name), entry(3000))
    assert cache.get(("t", "a")) is not None
    cache.put(("t", "d"), entry(3000))
    assert [n for n in "abcd" if cache.get(("t", n))] == ["a", "c", "d"]
    assert cache.bytes == 9000 == metrics.registry.get_sample_value("catalejo_media_cache_bytes")
    assert metrics.registry.get_sample_value("catalejo_media_cache_evictions_total") == 1
    assert cache.get(("other", "a")) is None, "scopes do not see each other"


def test_one_giant_does_not_sweep_the_cache() -> None:
    cache = PreparedCache(10_000, MediaMetrics())
    cache.put(("t", "a"), entry(3000))
    cache.put(("t", "giant"), entry(6000))
    assert cache.get(("t", "giant")) is None and cache.get(("t", "a")) is not None


def test_the_same_key_twice_counts_once_and_zero_means_off() -> None:
    cache = PreparedCache(10_000, MediaMetrics())
    for _ in range(5):
        cache.put(("t", "a"), entry(3000))
    assert cache.bytes == 3000
    off = PreparedCache(0, MediaMetrics())
    off.put(("t", "a"), entry(3000))
    assert len(off) == 0 and off.bytes == 0


def test_references_expire_and_are_bounded() -> None:
    now = 0.0
    cache = ReferenceCache(lambda: now, limit=2)
    cache.put(b"short", ("t", "k"), 10)
    cache.put(b"long", ("t", "k"), float("inf"))
    cache.put(b"never", ("t", "k"), 0)
    assert cache.get(b"short") == ("t", "k") and cache.get(b"never") is None
    now = 10.0
    assert cache.get(b"short") is None and cache.get(b"long") == ("t", "k")
    cache.put(b"x", ("t", "k"), 1)
    cache.put(b"y", ("t", "k"), 1)
    assert cache.get(b"long") is None and len(cache) == 2


def test_refusals_are_remembered_for_a_short_time_without_their_traceback() -> None:
    now = 0.0
    cache = NegativeCache(5, lambda: now, limit=2)
    try:
        raise MediaProblem("media_undecodable", "broken", reason="corrupt")
    except MediaProblem as problem:
        cache.put(b"a", problem)
    depths = set()
    for _ in range(3):
        with pytest.raises(MediaProblem) as caught:
            cache.refuse(b"a")
        assert (caught.value.code, caught.value.reason) == ("media_undecodable", "corrupt")
        depths.add(len(caught.traceback))
    assert b"a" in cache and len(depths) == 1, "the traceback does not grow from one refusal to the next"
    now = 5.0
    assert b"a" not in cache
    for key in (b"b", b"c", b"d"):
        cache.put(key, caught.value)
    assert len(cache) == 2
    off = NegativeCache(0)
    off.put(b"a", caught.value)
    assert b"a" not in off

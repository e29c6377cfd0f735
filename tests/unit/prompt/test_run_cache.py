"""Turns seen before are not encoded again; nothing passes from one tenant to another; memory is bounded."""

import random
from unittest.mock import patch

import pytest

from gateway.prompt import PromptBuilder, PromptSettings
from gateway.prompt.run_cache import RunCache
from gateway.prompt.vocabulary import Vocabulary
from tests.property.prompt.support import tiny

LONG = "A long turn of a conversation, <b>marked</b> and ]~b] all. " * 20


def conversation(turns: int) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": f"{LONG}{i}"} for i in range(turns)]


def encoded_runs(builder: PromptBuilder, turns: int, scope: str | None) -> int:
    """How many runs the tokenizer was asked for."""
    real = Vocabulary._encode_all
    asked = []

    def counting(self: Vocabulary, texts: list[str]) -> list[list[int]]:
        asked.extend(t for t in texts if LONG in t)
        return real(self, texts)

    with patch.object(Vocabulary, "_encode_all", counting):
        ids = builder.render(conversation(turns), scope=scope).ids
    assert ids == PromptBuilder(tiny()).render(conversation(turns)).ids
    return len(asked)


def test_a_conversation_that_grows_is_encoded_turn_by_turn() -> None:
    builder = PromptBuilder(tiny())
    assert encoded_runs(builder, 3, "a") == 3
    assert encoded_runs(builder, 5, "a") == 2
    assert encoded_runs(builder, 5, "a") == 0


def test_another_tenant_gains_nothing_and_no_scope_keeps_nothing() -> None:
    builder = PromptBuilder(tiny())
    assert encoded_runs(builder, 3, "a") == 3
    assert encoded_runs(builder, 3, "b") == 3
    assert encoded_runs(builder, 3, None) == 3
    assert encoded_runs(builder, 3, None) == 3


def test_without_memory_nothing_is_kept() -> None:
    builder = PromptBuilder(tiny(), PromptSettings(run_cache_bytes=0))
    assert [encoded_runs(builder, 3, "a") for _ in range(2)] == [3, 3]


def test_the_least_recently_used_goes_and_the_size_stays_bounded() -> None:
    cache = RunCache(20_000)
    rng = random.Random(0)
    for i in range(500):
        text = f"{i} " * rng.randrange(40, 400)
        cache.put("a", text, range(rng.randrange(1, 300)))
        assert 0 <= cache.size_bytes <= 20_000
    first, second, third = ("x" * 4000 + c for c in "123")
    cache = RunCache(20_000)
    for text in (first, second, third):
        cache.put("a", text, [1, 2, 3])
    assert cache.get("a", first) == [1, 2, 3]
    cache.put("a", "y" * 4400, [4])
    cache.put("a", "z" * 4400, [4])
    assert cache.get("a", first) == [1, 2, 3] and cache.get("a", second) is None
    cache.put("a", "w" * 6000, [5])
    assert cache.get("a", "w" * 6000) is None, "one entry may not push all others out"


@pytest.mark.parametrize("size", [1, 63])
def test_short_runs_are_not_worth_keeping(size: int) -> None:
    cache = RunCache(1 << 20)
    cache.put("a", "x" * size, [1])
    assert cache.size_bytes == 0


def test_many_ids_come_back_as_they_were() -> None:
    cache, ids = RunCache(10 << 20), list(range(200_001))
    cache.put("a", LONG, ids)
    assert cache.get("a", LONG) == ids
    kept = cache.size_bytes
    cache.put("a", LONG + "x", range(1 << 40))
    assert cache.size_bytes == kept, "refused by its size alone"

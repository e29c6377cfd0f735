"""Block selection: a fact in a long text is found wherever it stands, and only because its block is chosen."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Model

FILLER = (
    "The old lamp was quiet and dusty near the river.",
    "Nothing happened that day.",
    "Maria carried the small basket behind the house.",
    "The road was long and the night was cold.",
    "In Vienna, Hugo repaired 12 clocks.",
    "A green bottle stood on the wide table.",
    "It rained all day.",
)
SHORT = 90  # sentences
DEPTHS = (0.05, 0.3, 0.5, 0.7, 0.95)


def haystack(sentences: int, depth: float) -> tuple[str, str]:
    """About 9 tokens a sentence. -> prompt, the number hidden in it."""
    rng = random.Random(int(depth * 100))
    code = str(rng.randint(10_000, 99_999))
    lines = [rng.choice(FILLER) for _ in range(sentences)]
    lines.insert(int(sentences * depth), f"The secret code of Lisbon is {code}.")
    return "Read this text.\n" + " ".join(lines) + "\n\nWhat is the secret code of Lisbon?", code


def found(model: Model, sentences: int, depths: tuple[float, ...] = DEPTHS) -> int:
    right = 0
    for depth in depths:
        prompt, code = haystack(sentences, depth)
        right += code in model.ask(prompt)
    return right


def test_needle_at_five_depths_with_sparse_attention(demo: Model) -> None:
    """More tokens than the chosen blocks hold: 16 of 27 blocks of 32 tokens are seen, others by each KV head."""
    assert found(demo, SHORT) >= 4


def test_needle_with_dense_attention(variant: Callable[..., Any]) -> None:
    """The same weights with room for every block of the prompt: MSA is then plain causal attention."""
    with variant(index_topk_blocks=64) as dense:
        assert found(dense, SHORT, (0.3,)) == 1


def test_without_selection_the_needle_is_lost(variant: Callable[..., Any]) -> None:
    """Control: with a query's own block alone the answer cannot be known, so the tests above do test selection."""
    with variant(index_topk_blocks=1) as blind:
        assert found(blind, SHORT, (0.3,)) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_needle_in_eight_thousand_tokens(demo: Model) -> None:
    """About 6 % of the blocks are chosen."""
    assert found(demo, 880, (0.1, 0.5, 0.9)) >= 2

"""Seeded text of a wanted number of tokens: English-like words, numbers and punctuation that tokenize like prose.

The ratio of words to tokens is the server's, measured once in the warm-up (`Calibration`). Text is cut from one pool
made before the run, so that a million tokens cost a copy and not a million draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_ONSETS = "b br c ch d f fl g gr h j k l m n p pl r s st t tr v w".split(" ")
_RIMES = "a an ar e ead en er i ight in ing o old on or ound u un y".split(" ")
_COMMON = (
    "the of and to in a is that for it as was with be by on not he this are or his from at which but have an had they"
    " you were their one all we can her has there been if more when will would who so no error value result file line"
    " return function test path user data key list name type time"
).split(" ")
_POOL_WORDS = 1 << 17


@dataclass(frozen=True, slots=True)
class Calibration:
    """`tokens_per_word` of the server's tokenizer on our text, and `overhead` tokens of the template for one turn."""

    tokens_per_word: float = 1.3
    overhead: float = 40.0

    def words(self, tokens: float) -> int:
        return max(1, round(tokens / self.tokens_per_word))


class TextSource:
    """Words by Zipf from a vocabulary drawn from the seed; the same seed gives the same text."""

    def __init__(self, seed: int, vocabulary: int = 4096) -> None:
        rng = np.random.default_rng([seed, 0x7E97])
        made = {
            "".join(str(rng.choice(_ONSETS)) + str(rng.choice(_RIMES)) for _ in range(int(rng.integers(1, 4))))
            for _ in range(vocabulary)
        }
        words = np.array([*_COMMON, *sorted(made)], dtype=object)
        weights = 1 / np.arange(1, len(words) + 1) ** 0.9
        chosen = words[rng.choice(len(words), size=_POOL_WORDS, p=weights / weights.sum())]
        stops, numbers = rng.random(_POOL_WORDS) < 0.08, rng.random(_POOL_WORDS) < 0.03
        chosen[stops] += "."
        chosen[numbers] = rng.integers(0, 100_000, int(numbers.sum())).astype(str)
        self._pool = " ".join(chosen)
        self._starts = np.concatenate([[0], np.cumsum([len(w) + 1 for w in chosen])])

    def words(self, rng: np.random.Generator, count: int) -> str:
        """`count` words. The first is drawn for this call, so that two texts share no prefix by accident."""
        parts = [str(int(rng.integers(10**9, 10**10)))]
        count -= 1
        while count > 0:
            first = int(rng.integers(0, _POOL_WORDS))
            last = min(first + count, _POOL_WORDS)
            parts.append(self._pool[self._starts[first] : self._starts[last] - 1])
            count -= last - first
        return " ".join(parts)

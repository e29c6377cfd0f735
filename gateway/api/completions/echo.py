"""The prompt as `echo` puts it before an answer: made once for all choices, in steps between which others get their turn."""

from __future__ import annotations

from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.api.completions.rows import Rows, joined

if TYPE_CHECKING:
    from gateway.api.generation.logprobs import TokenTexts

STEP_TOKENS: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Echo:
    """prompt       its ids
    characters   of the tokens' texts, each for itself: what offsets count
    rows         of its tokens, whose logprobs are null
    """

    prompt: NDArray[np.uint32]
    text: str
    characters: int
    rows: Rows


def echo_of(texts: TokenTexts, prompt: NDArray[np.uint32]) -> Echo:
    raw: list[bytes] = []
    rows: list[Rows] = [(b"",) * 4]
    offset = 0
    for at in range(0, len(prompt), STEP_TOKENS):
        ids = prompt[at : at + STEP_TOKENS].tolist()
        pieces, offsets = [], []
        for token in ids:
            text, data = texts.of(token)
            raw.append(bytes(data))
            pieces.append(text)
            offsets.append(offset)
            offset += len(text)
        nulls = b",".join([b"null"] * len(ids))
        rows.append((orjson.dumps(pieces)[1:-1], nulls, nulls, orjson.dumps(offsets)[1:-1]))
        sleep(0)  # the interpreter lock's turn
    return Echo(prompt, b"".join(raw).decode("utf-8", "replace"), offset, joined(rows))

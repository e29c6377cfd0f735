"""A request and its choices. A sequence is one choice: tokens, how many of them are in the KV cache, and its pages.

Prefill, decode and recomputing after a preemption are one thing: compute tokens[computed:], and when that reaches the
end, sample the next token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.wire import Item, Usage

if TYPE_CHECKING:
    from engine.local.grammar import Constraint
    from engine.local.prefix_cache import Node
    from engine.local.sampling import Sampling


@dataclass(eq=False, slots=True)
class Request:
    """What was asked. `items` have their rows (`data`) or are fully covered by the media store."""

    rid: str
    prompt: np.ndarray
    """uint32 [prompt tokens], placeholders expanded."""
    sampling: Sampling
    n: int = 1
    logprobs: int | None = None
    constraint: Constraint | None = None
    salt: str = ""
    priority: int = 0
    items: tuple[Item, ...] = ()
    sequences: list[Sequence] = field(default_factory=list)
    cached_tokens: int | None = None
    """Prompt tokens found in the cache when the request was first scheduled."""
    arrival: int = 0
    context: Any = None
    """The front end's own handle; the core never looks at it."""

    @property
    def open(self) -> bool:
        return any(s.finish is None for s in self.sequences)


class Sequence:
    """Choice `index` of a request."""

    __slots__ = (
        "_keys",
        "_media_pages",
        "computed",
        "constraint",
        "counts",
        "finish",
        "index",
        "nodes",
        "pages",
        "prompt_tokens",
        "request",
        "slot",
        "tabled",
        "tokens",
    )

    def __init__(self, request: Request, index: int, page_size: int) -> None:
        self.request = request
        self.index = index
        self.prompt_tokens = len(request.prompt)
        self.tokens: list[int] = request.prompt.tolist()
        self.computed = 0
        self.pages: list[int] = []
        self.nodes: list[Node] = []  # the leading pages that live in the prefix tree
        self.slot = -1  # row in the engine's page table while running
        self.tabled = 0  # leading pages that the row already shows
        self.finish: str | None = None
        self.counts: Any = None  # token counts for the penalties, made by the sampler when needed
        self.constraint = request.constraint.fork() if request.constraint is not None else None
        self._media_pages: set[int] = set()
        self._keys: np.ndarray | None = None
        if request.items:
            self._keys = request.prompt.astype(np.int64)
            for i, item in enumerate(request.items):
                for offset, length in item.ranges:
                    self._keys[offset : offset + length] = -1 - i
                    self._media_pages.update(range(offset // page_size, (offset + length - 1) // page_size + 1))

    @property
    def rank(self) -> tuple[int, int, int]:
        """Order of service: higher priority first, then who came first."""
        return (-self.request.priority, self.request.arrival, self.index)

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are not in the cache yet; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.generated, self.request.cached_tokens or 0)

    def page_key(self, page: int, page_size: int) -> bytes:
        """Exact content of a full page: ids as int64, media positions as -1, -2, ... and the hashes they stand for.

        The position inside an item needs no mention: it follows from the path before this page, and the grid is part of
        the hash."""
        start, stop = page * page_size, (page + 1) * page_size
        if page not in self._media_pages or self._keys is None:
            return np.array(self.tokens[start:stop], dtype=np.int64).tobytes()
        ids = np.array(self.tokens[start:stop], dtype=np.int64)
        marks = self._keys[start:stop]
        hashes = []
        for n, mark in enumerate(dict.fromkeys(marks[marks < 0].tolist())):
            ids[: len(marks)][marks == mark] = -1 - n
            hashes.append(bytes.fromhex(self.request.items[-1 - mark].hash))
        return ids.tobytes() + b"".join(hashes)

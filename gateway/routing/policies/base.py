"""What a policy sees and what it must give. One policy per file; the table is in policies/__init__.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Candidate(Protocol):
    """A usable worker. `in_flight`: our unfinished requests there; `pending_tokens`: prompt tokens we sent it that are
    neither cached nor answered yet; `resident_tokens`: context tokens of our unfinished requests; `reported_load`: what the
    engine itself says it runs and queues, from all its clients, or None."""

    @property
    def name(self) -> str: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def pending_tokens(self) -> int: ...
    @property
    def resident_tokens(self) -> int: ...
    @property
    def reported_load(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """`names`: the prompt's block names (blocks.py); `block_tokens`: how many tokens a name stands for; `session`: a stable
    key of the conversation or user, "" when there is none."""

    prompt_tokens: int
    names: Sequence[bytes] = field(default_factory=tuple)
    block_tokens: int = 256
    session: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """`reason` is from a fixed set per policy (it becomes a label); `cached_tokens` is the policy's guess."""

    name: str
    reason: str
    cached_tokens: int = 0


class Policy(Protocol):
    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Choice:
        """`candidates` is never empty and in a stable order."""

    def sent(self, name: str, request: RouteRequest) -> None:
        """The request went to `name`."""

    def lost(self, name: str) -> None:
        """`name` went away or restarted; what was known of it no longer holds."""

    def known_blocks(self, name: str) -> int:
        """How many blocks of prompts `name` is believed to cache."""

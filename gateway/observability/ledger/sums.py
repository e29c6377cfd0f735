"""What both forms of the ledger hold."""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.observability.usage import UsageRecord

SUMS: Final = (
    "requests",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "images",
    "videos",
    "media_bytes",
    "seconds",
)
"""The columns that add up. Cached tokens are part of the input, reasoning tokens of the output."""


class LedgerError(Exception):
    """The ledger cannot be read; the text says which and why."""


class LedgerRow(NamedTuple):
    """`sums` in the order of SUMS."""

    at: float
    tenant: str
    model: str
    outcome: str
    sums: tuple[float, ...]


def sums_of(record: UsageRecord) -> tuple[float, ...]:
    u = record.usage
    return (
        1,
        u.prompt_tokens,
        u.cached_tokens,
        u.completion_tokens,
        u.reasoning_tokens,
        u.images,
        u.videos,
        u.media_bytes,
        record.seconds,
    )

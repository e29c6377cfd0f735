"""Finished requests for the ledger's tests."""

from __future__ import annotations

from typing import Any

from gateway.observability.usage import RequestUsage, UsageRecord

NOON = 1_796_040_000.0
"""2026-11-30T12:00:00Z"""


def record(at: float = NOON, **fields: Any) -> UsageRecord:
    usage = {"prompt_tokens": 100, "cached_tokens": 64, "completion_tokens": 20, "reasoning_tokens": 5}
    usage |= {name: fields.pop(name) for name in list(fields) if name in RequestUsage.__slots__}
    rest = {"request_id": "req_1", "tenant": "acme", "model": "m3", "outcome": "ok", "seconds": 1.5, **fields}
    return UsageRecord(at, usage=RequestUsage(**usage), **rest)

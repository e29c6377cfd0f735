"""What a source of engines is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.routing.settings import EngineEndpoint

Publish = Callable[[Sequence[EngineEndpoint]], None]
Failed = Callable[[str], None]
"""Counts one failure of the source of that name."""


class Source(Protocol):
    async def run(self, publish: Publish) -> None:
        """Until it is cancelled; `publish` gets the whole list each time it changed."""


def authority(address: str, port: int) -> str:
    """address:port as URLs write it; IPv6 in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

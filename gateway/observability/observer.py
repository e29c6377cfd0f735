"""What watches requests besides metrics and logs: the usage ledger and the tracer, each None unless configured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.metrics import Metrics
from gateway.observability.ledger import UsageLedger
from gateway.observability.settings import ObservabilitySettings
from gateway.observability.tracing import Tracing, start_tracing


class Observer:
    def __init__(self, settings: ObservabilitySettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self.ledger = UsageLedger(settings.ledger, metrics) if settings.ledger.path is not None else None
        self.tracing: Tracing | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Around everything that serves requests, so that the last of them is still recorded."""
        if self.ledger is not None:
            self.ledger.start()
        tracing = self.tracing = start_tracing(self._settings.tracing, self._metrics)
        try:
            yield
        finally:
            if self.ledger is not None:
                await asyncio.to_thread(self.ledger.close)
            if tracing is not None:
                await asyncio.to_thread(tracing.close)

"""An EventStream tied to its runs: failures and lost clients are counted, and the runs are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.api import sse
from gateway.api.context import RequestContext
from gateway.api.generation.run import Run
from gateway.errors import ApiError
from gateway.services import Services


def event_stream(
    produce: sse.Produce,
    runs: Sequence[Run],
    context: RequestContext,
    services: Services,
    failure_event: Callable[[ApiError], bytes] = lambda error: sse.event(error.body()),
) -> sse.EventStream:
    def failed(error: ApiError) -> None:
        context.error_code = error.code

    async def closed() -> None:
        await asyncio.gather(*(run.aclose() for run in runs))

    def gone() -> None:
        phase = "decode" if any(run.completion_tokens for run in runs) else "prefill"
        services.metrics.client_disconnects.labels(phase).inc()
        context.notes["client_gone"] = phase

    return sse.EventStream(
        produce,
        on_close=closed,
        stall_s=services.settings.api.client_stall_s,
        keep_alive_s=services.settings.api.keep_alive_s,
        on_failure=failed,
        on_disconnect=gone,
        failure_event=failure_event,
    )

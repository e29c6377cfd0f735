"""An EventStream tied to its run: failures and lost clients are counted, and the run is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from gateway.api import sse
from gateway.api.context import RequestContext
from gateway.api.generation.run import Run
from gateway.errors import ApiError
from gateway.services import Services


def event_stream(
    produce: AsyncIterator[bytes],
    run: Run,
    context: RequestContext,
    services: Services,
    failure_event: Callable[[ApiError], bytes] = lambda error: sse.event(error.body()),
) -> sse.EventStream:
    def failed(error: ApiError) -> None:
        context.error_code = error.code

    def gone() -> None:
        phase = "decode" if run.completion_tokens else "prefill"
        services.metrics.client_disconnects.labels(phase).inc()
        context.notes["client_gone"] = phase

    return sse.EventStream(
        produce,
        on_close=run.aclose,
        keep_alive_s=services.settings.api.keep_alive_s,
        on_failure=failed,
        on_disconnect=gone,
        failure_event=failure_event,
    )

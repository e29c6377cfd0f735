"""Traces without OpenTelemetry's packages: what the rest of the gateway calls, and what it gets when nothing is traced.

`start_tracing` imports gateway.observability.otel, the only file that knows those packages, when an endpoint is configured.
A trace holds names, counts and times, never contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.metrics import Metrics
from gateway.observability.settings import TracingSettings

if TYPE_CHECKING:
    from engine.wire import GenerateRequest

Attributes = Mapping[str, str | int | float | bool | list[str]]
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


class EngineSpan:
    """One attempt at one engine; this one records nothing. `end` may be called more than once, the first call counts."""

    __slots__ = ()
    traceparent: str | None = None
    """For the engine to continue; None: as the client sent it."""

    def first_token(self) -> None: ...
    def set(self, attributes: Attributes) -> None: ...
    def end(self, error: str | None = None) -> None: ...


class RequestTrace:
    """The trace of one request; this one records nothing."""

    __slots__ = ()
    trace_id: str | None = None

    def step(self, name: str) -> AbstractContextManager[Any]:
        """A span around a step of the request; an exception that passes is noted by its code and goes on."""
        return _NOTHING

    def engine(self, worker: str, model: str, route: str, request: GenerateRequest) -> EngineSpan:
        return NO_SPAN

    def end(self, route: str, status: int, error_code: str | None, attributes: Attributes) -> None: ...


NO_SPAN: Final = EngineSpan()
NO_TRACE: Final = RequestTrace()


class Tracing(Protocol):
    def begin(self, scope: Mapping[str, Any], request_id: str) -> RequestTrace:
        """`scope`: the ASGI scope of a request that has just come."""

    def close(self) -> None:
        """Sends what is left; blocks for a few seconds at most."""


def missing(settings: TracingSettings) -> str | None:
    """What stands in the way of the configured traces, or None."""
    try:
        installed = find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:  # a parent package is not there
        installed = None
    if settings.endpoint is None or installed:
        return None
    return "observability.tracing.endpoint is set, but OpenTelemetry is not installed: pip install 'catalejo[tracing]'"


def start_tracing(settings: TracingSettings, metrics: Metrics) -> Tracing | None:
    """None when no endpoint is configured."""
    if settings.endpoint is None:
        return None
    from gateway.observability.otel import OtelTracing

    return OtelTracing(settings, metrics)

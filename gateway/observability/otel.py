"""Traces with OpenTelemetry: spans of a request, attributes by its semantic conventions (HTTP; GenAI, in development).

    POST /v1/chat/completions        server span, child of the caller's `traceparent`
      admission, prompt, media       steps of the gateway
      chat MODEL                     one per engine asked, with the event `first_token`; its context goes to the engine

Ids of spans are passed by hand: no context variables, no automatic instrumentation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import version
from gateway.errors import ApiError
from gateway.metrics import Metrics, child
from gateway.observability.settings import TracingSettings
from gateway.observability.tracing import Attributes, EngineSpan, RequestTrace

if TYPE_CHECKING:
    from engine.wire import GenerateRequest

log = logging.getLogger("catalejo.tracing")
PROPAGATOR: Final = TraceContextTextMapPropagator()
HEADERS: Final = (b"traceparent", b"tracestate")
CLOSE_TIMEOUT_S: Final = 5.0
SAMPLING_ATTRIBUTES: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_new_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "sampling_seed": "gen_ai.request.seed",
}


class OtelTracing:
    """A Tracing (tracing.py). Spans leave in batches, from a thread of the SDK; a collector that fails costs spans alone."""

    def __init__(self, settings: TracingSettings, metrics: Metrics) -> None:
        url = str(settings.endpoint)
        if settings.endpoint is not None and settings.endpoint.path in (None, "", "/"):
            url = url.rstrip("/") + "/v1/traces"
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        exporter = OTLPSpanExporter(url, headers=headers, timeout=settings.timeout_s)
        # The SDK's own complaints, several lines for each batch; ours is one line, and a metric.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = {"service.name": settings.service_name, "service.version": version()}
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=Resource.create(resource),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Counted(exporter, metrics)))
        self._tracer = self._provider.get_tracer("catalejo.gateway", version())

    def begin(self, scope: Mapping[str, Any], request_id: str) -> RequestTrace:
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in HEADERS}
        attributes = {
            "http.request.method": scope["method"],
            "url.scheme": scope.get("scheme", "http"),
            "catalejo.request_id": request_id,
        }
        span = self._tracer.start_span(
            str(scope["method"]), PROPAGATOR.extract(carrier, Context()), SpanKind.SERVER, attributes
        )
        return _Trace(self._tracer, span, str(scope["method"])) if span.is_recording() else _Unsampled(span)

    def close(self) -> None:
        # The SDK's shutdown may wait for a collector that does not answer.
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(CLOSE_TIMEOUT_S)


class _Trace(RequestTrace):
    __slots__ = ("_context", "_method", "_span", "_tracer", "trace_id")

    def __init__(self, tracer: Tracer, span: Span, method: str) -> None:
        self._tracer = tracer
        self._method = method
        self._span = span
        self._context = set_span_in_context(span, Context())
        self.trace_id = f"{span.get_span_context().trace_id:032x}"

    def step(self, name: str) -> AbstractContextManager[Any]:
        return self._step(name)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        span = self._tracer.start_span(name, self._context)
        try:
            yield
        except BaseException as e:
            _fail(span, e.code if isinstance(e, ApiError) else type(e).__name__)
            raise
        finally:
            span.end()

    def engine(self, worker: str, model: str, route: str, request: GenerateRequest) -> EngineSpan:
        operation = "text_completion" if route == "/v1/completions" else "chat"
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "catalejo",
            "gen_ai.request.model": model,
            "gen_ai.request.choice.count": request.n,
            "gen_ai.usage.input_tokens": len(request.input_ids),
            "catalejo.worker": worker,
            "catalejo.media_items": len(request.items),
        }
        for name, attribute in SAMPLING_ATTRIBUTES.items():
            if (value := request.sampling.get(name)) is not None:
                attributes[attribute] = value
        return _EngineSpan(self._tracer.start_span(f"{operation} {model}", self._context, SpanKind.CLIENT, attributes))

    def end(self, route: str, status: int, error_code: str | None, attributes: Attributes) -> None:
        self._span.update_name(f"{self._method} {route}")
        self._span.set_attributes({"http.route": route, "http.response.status_code": status, **attributes})
        if error_code is not None:
            self._span.set_attribute("error.type", error_code)
            if status >= 500 or status == 200:  # a client's own mistake is no error of a server span
                self._span.set_status(Status(StatusCode.ERROR, error_code))
        self._span.end()


class _Unsampled(RequestTrace):
    """The caller, or the ratio, said no: nothing is recorded, and the engine is told so."""

    __slots__ = ("_engine", "trace_id")

    def __init__(self, span: Span) -> None:
        self._engine = _Told(_traceparent(span))
        self.trace_id = f"{span.get_span_context().trace_id:032x}"

    def engine(self, worker: str, model: str, route: str, request: GenerateRequest) -> EngineSpan:
        return self._engine


class _Told(EngineSpan):
    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent


class _EngineSpan(EngineSpan):
    __slots__ = ("_span", "traceparent")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.traceparent = _traceparent(span)

    def first_token(self) -> None:
        self._span.add_event("first_token")

    def set(self, attributes: Attributes) -> None:
        if self._span.is_recording():
            self._span.set_attributes(attributes)

    def end(self, error: str | None = None) -> None:
        if self._span.is_recording():
            if error is not None:
                _fail(self._span, error)
            self._span.end()


class _Counted(SpanExporter):
    """The exporter, with its outcome as a metric, and one line of log when it begins or ceases to fail."""

    def __init__(self, inner: SpanExporter, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        child(self._metrics.trace_spans, "failed" if failed else "exported").inc(len(spans))
        if failed and not self._failing:
            log.warning("traces cannot be sent to the collector; spans are dropped until they can")
        elif self._failing and not failed:
            log.info("traces are sent again")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


def _fail(span: Span, code: str) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))


def _traceparent(span: Span) -> str:
    """W3C Trace Context, version 00."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

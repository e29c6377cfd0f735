"""A collector: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [plain(v) for v in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))


class Collector:
    """`status` other than 200: it refuses."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        body = ExportTraceServiceRequest.FromString(await request.read())
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        if self.status == 200:
            for group in body.resource_spans:
                self.resources.append({a.key: plain(a.value) for a in group.resource.attributes})
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return web.Response(status=self.status, content_type="application/x-protobuf")

    def named(self, prefix: str) -> list[Span]:
        return [s for s in self.spans if s.name.startswith(prefix)]


def attributes(span: Span) -> dict[str, Any]:
    return {a.key: plain(a.value) for a in span.attributes}

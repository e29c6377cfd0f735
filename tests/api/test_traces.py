"""OpenTelemetry traces: from the caller through the gateway into the engine, as a real collector gets them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.api.harness import CHAT, MODEL, TINY, Stack, body_of
from tests.api.otlp import Collector, attributes
from tests.fixtures.media.png import data_url, png
from tests.mock_engine import MockEngine

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=x"}
ERROR = 2


@asynccontextmanager
async def traced(script: list[dict[str, Any]] | None = None, **settings: Any) -> AsyncIterator[tuple[Stack, Collector]]:
    """Spans are all with the collector once the stack has ended."""
    tracing = settings.pop("tracing", {})
    async with Collector() as collector:
        observability = {"tracing": {"endpoint": collector.url, **tracing}}
        async with Stack(script, observability=observability, **settings) as stack:
            yield stack, collector


def sampled(traceparent: str) -> bool:
    return bool(int(traceparent.rpartition("-")[2], 16) & 1)  # 2 says that the trace id is random


async def test_a_trace_goes_from_the_caller_through_every_step_into_the_engine() -> None:
    script = [{"pieces": ["<mm:think>", "Hm", "</mm:think>", "Yes", "."], "delay_ms": 2}]
    part = {"type": "image_url", "image_url": {"url": data_url(png())}}
    body = body_of([part, {"type": "text", "text": "very private words"}], {"temperature": 0.5, "max_tokens": 50})
    async with traced(script, tracing={"headers": {"x-key": "secret"}, "service_name": "edge"}) as (stack, collector):
        answer = await stack.post(CHAT, body, CALLER)
        sent = stack.sent
        await stack.get("/health")
    usage = answer.json["usage"]
    spans = {s.name: s for s in collector.spans}
    assert set(spans) == {f"POST {CHAT}", "queue", "prompt", "media", f"chat {MODEL}"}
    root, engine = spans[f"POST {CHAT}"], spans[f"chat {MODEL}"]
    assert {s.trace_id.hex() for s in collector.spans} == {TRACE}
    assert (root.parent_span_id.hex(), root.kind, root.trace_state) == (PARENT, root.SPAN_KIND_SERVER, "vendor=x")
    assert {s.parent_span_id for s in collector.spans if s is not root} == {root.span_id}
    continued = f"00-{TRACE}-{engine.span_id.hex()}-01"
    assert (sent["traceparent"], sent["headers"]["traceparent"]) == (continued, continued)
    told = attributes(root)
    assert (told["http.route"], told["http.response.status_code"], told["catalejo.tenant"]) == (CHAT, 200, "default")
    assert told["catalejo.request_id"] == answer.headers["x-request-id"]
    told = attributes(engine)
    assert told["gen_ai.operation.name"] == "chat" and told["gen_ai.request.model"] == MODEL
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.max_tokens"]) == (0.5, 50)
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert told["gen_ai.usage.reasoning.output_tokens"] > 0
    assert told["gen_ai.response.finish_reasons"] == ["stop"]
    assert told["catalejo.worker"] and told["catalejo.media_items"] == 1
    [first] = engine.events
    assert first.name == "first_token"
    assert engine.start_time_unix_nano < first.time_unix_nano < engine.end_time_unix_nano
    for inner in (spans["prompt"], spans["media"], engine):
        assert root.start_time_unix_nano <= inner.start_time_unix_nano
        assert inner.end_time_unix_nano <= root.end_time_unix_nano
    assert not any(b"private" in s.SerializeToString() for s in collector.spans)
    assert collector.headers[0]["x-key"] == "secret"
    assert collector.resources[0]["service.name"] == "edge"


async def test_without_a_caller_a_trace_begins_here_and_the_log_names_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="catalejo.access"):
        async with traced() as (stack, collector):
            await stack.stream("Hi", max_tokens=3)
            await stack.post("/v1/completions", {"model": MODEL, "prompt": "a b", "max_tokens": 2})
    roots = [s for s in collector.spans if not s.parent_span_id]
    assert len(roots) == 2 and len({s.trace_id for s in roots}) == 2
    logged = {vars(r)["trace_id"] for r in caplog.records if r.name == "catalejo.access"}
    assert logged == {s.trace_id.hex() for s in roots}
    [completion] = collector.named("text_completion ")
    assert attributes(completion)["gen_ai.operation.name"] == "text_completion"


async def test_each_engine_that_was_asked_has_its_span() -> None:
    sick = [{"pieces": ["x"], "fail_after": 0, "fault": "reset"}]
    async with MockEngine(TINY, sick) as ill, MockEngine(TINY, [{"pieces": ["fine"]}]) as well:
        engines = [{"url": ill.url, "name": "a"}, {"url": well.url, "name": "b"}]
        async with traced(engines=engines, routing={"policy": "round_robin"}) as (stack, collector):
            assert (await stack.chat("Hi")).status == 200
            sent = [e.requests()[-1]["traceparent"] for e in (ill, well)]
    one, two = sorted(collector.named("chat "), key=lambda s: s.start_time_unix_nano)
    assert [attributes(s)["catalejo.worker"] for s in (one, two)] == ["a", "b"]
    assert (one.status.code, attributes(one)["error.type"], two.status.code) == (ERROR, "engine_error", 0)
    assert [s.rpartition("-")[0] for s in sent] == [f"00-{s.trace_id.hex()}-{s.span_id.hex()}" for s in (one, two)]
    assert all(sampled(s) for s in sent)


async def test_failures_refusals_and_lost_clients_show() -> None:
    script = [
        {"match": "broken", "pieces": ["Half ", "x"], "fail_after": 1, "fault": "error"},
        {"match": "slow", "pieces": ["more "] * 400, "delay_ms": 20},
    ]
    async with traced(script) as (stack, collector):
        assert (await stack.chat("broken")).status == 502
        await stack.stream("broken")
        assert (await stack.post(CHAT, b"{")).status == 400
        async with stack.open_stream("slow") as response:
            for _ in range(3):
                await response.content.readuntil(b"\n\n")
            response.close()
        await stack.settled()
        await stack.alone()
    whole, streamed, bad, left = sorted(collector.named("POST "), key=lambda s: s.start_time_unix_nano)
    assert (whole.status.code, attributes(whole)["error.type"]) == (ERROR, "engine_error")
    assert (streamed.status.code, attributes(streamed)["error.type"]) == (ERROR, "engine_error")
    assert (bad.status.code, attributes(bad)["error.type"]) == (0, "invalid_json")
    assert left.status.code == 0
    failed = [attributes(s) for s in sorted(collector.named("chat "), key=lambda s: s.start_time_unix_nano)]
    assert [a.get("error.type") for a in failed] == ["engine_error", "engine_error", "aborted"]
    assert failed[1]["gen_ai.usage.output_tokens"] > 0
    assert failed[2]["gen_ai.response.finish_reasons"] == ["error"]


async def test_a_callers_no_is_kept_and_the_ratio_decides_the_rest() -> None:
    async with traced(tracing={"sample_ratio": 0.0}) as (stack, collector):
        await stack.post(CHAT, body_of("Hi", {}), {"traceparent": f"00-{TRACE}-{PARENT}-01"})
        await stack.post(CHAT, body_of("Hi", {}), {"traceparent": f"00-{TRACE}-{PARENT}-00"})
        refused = stack.sent["traceparent"]
        await stack.post(CHAT, body_of("Hi", {}))
        undecided = stack.sent["traceparent"]
    assert len(collector.named("POST ")) == 1
    assert refused.startswith(f"00-{TRACE}-") and TRACE not in undecided
    assert not sampled(refused) and not sampled(undecided)


@pytest.mark.parametrize("status", [500, None], ids=["refuses", "is-not-there"])
async def test_a_failing_collector_costs_spans_alone(status: int | None, caplog: pytest.LogCaptureFixture) -> None:
    async with Collector(status or 200) as collector:
        endpoint = collector.url if status else "http://127.0.0.1:1"
        tracing = {"endpoint": endpoint, "timeout_s": 0.2}
        async with Stack(observability={"tracing": tracing}) as stack:
            for _ in range(3):
                assert (await stack.chat("Hi", max_tokens=2)).status == 200
        assert not collector.spans
    metrics = stack.app.state.services.metrics.registry
    assert metrics.get_sample_value("catalejo_trace_spans_total", {"outcome": "failed"}) > 3
    told = [r for r in caplog.records if r.name.startswith(("catalejo.tracing", "opentelemetry"))]
    assert [r.levelname for r in told] == ["WARNING"]


def test_nothing_is_imported_unless_configured() -> None:
    code = (
        "import sys, gateway.app, gateway.services\n"
        "from gateway.config import Settings\n"
        "from gateway.api.generation import pipeline\n"
        f"gateway.app.create_app(Settings(model_path={str(TINY)!r}))\n"
        "sys.exit(any(m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter', 'requests')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0

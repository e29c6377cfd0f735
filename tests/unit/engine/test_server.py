"""What the HTTP side promises beyond the contract suite: limits, pins, keep-alives, the token, a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
import uvicorn

from engine import wire
from engine.local.cli import parse, run
from engine.local.options import EngineOptions
from engine.local.server import create_app
from tests.contract.client import EngineClient, request, text_ids
from tests.unit.engine.harness import ROOT, TINY, Prompt

ENDLESS = {"max_new_tokens": 60_000, "temperature": 0.0, "ignore_eos": True}


@contextlib.asynccontextmanager
async def serving(token: str | None = None, **options: Any):
    """A client of an engine in this event loop."""
    app = create_app(EngineOptions(model=TINY, token=token, **({"kv_pages": 8192} | options)))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with aiohttp.ClientSession() as session:
            client = EngineClient(f"http://127.0.0.1:{port}", token, session)
            client.service = app.state.service
            yield client
    finally:
        server.should_exit = True
        await task


def frame(**fields: Any) -> bytes:
    return b"".join(wire.encode_request(request(**fields)))


def media(prompt: Prompt, *, rows: bool = True, **fields: Any) -> bytes:
    items = (
        prompt.items
        if rows
        else [wire.Item(i.modality, i.hash, i.rows, i.t_dup, i.grid, i.ranges) for i in prompt.items]
    )
    return frame(input_ids=prompt.ids, items=tuple(items), **fields)


async def until(condition, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_every_route_but_health_and_metrics_wants_the_token():
    async with serving("secret") as engine:
        for method, path in (("post", wire.ROUTE), ("post", "/generate"), ("get", "/model_info"), ("get", "/v1/loads"),
                             ("post", "/abort_request"), ("post", "/flush_cache")):  # fmt: skip
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
                async with engine.session.request(method, engine.url + path, headers=headers) as response:
                    assert response.status == 401
                    assert (await response.json())["error"]["code"] == "unauthorized"
        for path in ("/health", "/metrics"):
            async with engine.session.get(engine.url + path) as response:
                assert response.status == 200
        assert (await engine.generate(request())).status == 200


async def test_a_full_queue_refuses_and_says_when_to_come_back():
    async with serving(max_running=1, max_queue=1) as engine:
        async with engine.open(frame(sampling=ENDLESS)) as running, engine.open(frame(sampling=ENDLESS)) as waiting:
            await running.content.readline()
            answer = await engine.send(frame())
            assert (answer.status, answer.error["code"]) == (503, "queue_full")
            assert int(answer.headers["retry-after"]) >= 1
            assert (await engine.send(frame(n=3))).error["code"] == "queue_full"
            waiting.close()
            running.close()
        assert await engine.idle_within(2)
        assert (await engine.generate(request())).status == 200


async def test_a_running_rid_cannot_be_taken():
    async with serving() as engine:
        call = request(sampling=ENDLESS)
        async with engine.open(b"".join(wire.encode_request(call))) as response:
            await response.content.readline()
            again = await engine.send(frame(rid=call.rid))
            assert (again.status, again.error["code"]) == (400, "duplicate_rid")
            response.close()
        assert await engine.idle_within(2)
        assert (await engine.send(frame(rid=call.rid))).status == 200


async def test_bodies_over_the_cap_are_refused_with_and_without_a_length():
    async with serving(max_body_bytes=100_000) as engine:

        async def endless_body():
            while True:
                yield bytes(10_000)

        for body in (bytes(200_000), endless_body()):
            async with engine.session.post(engine.url + wire.ROUTE, data=body) as response:
                assert response.status == 413
                assert (await response.json())["error"]["code"] == "body_too_large"


async def test_hash_only_items_are_pinned_until_the_request_ends():
    prompt, other = Prompt().text(5).image(4, 4, 1).text(5), Prompt().text(5).image(4, 4, 2).text(5)
    size = prompt.items[0].nbytes
    async with serving(media_store_bytes=size) as engine:
        missing = await engine.send(media(prompt, rows=False))
        assert (missing.status, missing.error["code"]) == (409, "missing_media")
        assert missing.body["missing"] == [prompt.items[0].hash]
        assert (await engine.send(media(prompt))).status == 200
        async with engine.open(media(prompt, rows=False, sampling=ENDLESS)) as response:
            await response.content.readline()
            full = await engine.send(media(other))
            assert (full.status, full.error["code"]) == (503, "media_store_full")
            response.close()
        assert await engine.idle_within(2)
        assert (await engine.send(media(other))).status == 200
        assert (await engine.send(media(prompt, rows=False))).status == 409
        both = Prompt().text(5).image(4, 4, 1).image(4, 4, 3)
        too_much = await engine.send(media(both))
        assert (too_much.status, too_much.error["code"]) == (413, "too_much_media")


async def test_an_empty_line_keeps_a_silent_stream_alive():
    async with serving(keep_alive_s=0.05, max_running=1) as engine:
        async with engine.open(frame(sampling=ENDLESS)) as running, engine.open(frame()) as waiting:
            await running.content.readline()
            assert waiting.status == 200
            assert [await waiting.content.readline() for _ in range(3)] == [b"\n"] * 3
            waiting.close()
            running.close()


async def test_leaving_frees_the_pages_within_a_second_also_in_prefill_and_in_the_queue():
    async with serving(max_running=2, prefix_cache=False) as engine:
        core = engine.service.core
        async with contextlib.AsyncExitStack() as stack:
            calls = [frame(sampling=ENDLESS, input_ids=text_ids(20_000, i)) for i in range(4)]
            responses = [await stack.enter_async_context(engine.open(c)) for c in calls]
            await until(lambda: core.totals.prefill_tokens > 0)
            for response in responses:
                response.close()
        await until(lambda: core.cache.used == 0 and not core.scheduler.waiting, 1.0 + 2.0)
        assert engine.service.idle


async def test_max_new_tokens_is_clipped_to_the_context():
    async with serving(context_length=100) as engine:
        answer = await engine.generate(request(input_ids=text_ids(90), sampling=ENDLESS))
        assert answer.finish().type == "length"
        assert len(answer.choice()) == 10
        refused = await engine.send(frame(input_ids=text_ids(100)))
        assert refused.error["code"] == "context_length_exceeded"
        assert refused.error["param"] == "input_ids"


async def test_stock_streams_are_cumulative_or_incremental():
    body = {"input_ids": text_ids(20).tolist(), "sampling_params": {"max_new_tokens": 5, "temperature": 0,
            "ignore_eos": True}, "return_logprob": True, "top_logprobs_num": 2}  # fmt: skip
    async with serving() as engine:
        _, whole = await engine.post("/generate", body)
        streams = {}
        for name in ("stream", "incremental_stream_output", "stream_output"):
            async with engine.session.post(
                engine.url + "/generate", json=body | {"stream": True, name: True}
            ) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                text = (await response.read()).decode()
            events = [e.removeprefix("data: ") for e in text.split("\n\n") if e.startswith("data: ")]
            assert events.pop() == "[DONE]"
            streams[name] = [json.loads(e) for e in events]
        assert streams["stream"][-1]["output_ids"] == whole["output_ids"]
        for name in ("incremental_stream_output", "stream_output"):
            assert [i for e in streams[name] for i in e["output_ids"]] == whole["output_ids"]
            rows = [r for e in streams[name] for r in e["meta_info"]["output_token_logprobs"]]
            assert [r[1] for r in rows] == whole["output_ids"]
        assert whole["meta_info"]["output_top_logprobs"][0][0][1] == whole["output_ids"][0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"text": "hello"}, "text"),
        ({"image_data": ["x"]}, "image_data"),
        ({"input_ids": [[1, 2]]}, "input_ids"),
        ({"input_ids": [True]}, "input_ids"),
        ({"sampling_params": {"stop": ["x"]}}, "stop"),
        ({"sampling_params": {"n": 0}}, "n must"),
        ({"sampling_params": {"regex": "a", "ebnf": "b"}}, "at most one"),
        ({"rid": 3}, "rid"),
        ({"mood": 1}, "mood"),
    ],
    ids=str,
)
async def test_stock_fields_that_are_not_supported_are_named(shared, change, named):
    status, body = await shared.post("/generate", {"input_ids": [1, 2, 3]} | change)
    assert status == 400
    assert named in body["error"]["message"]


@pytest.fixture
async def shared():
    async with serving() as engine:
        yield engine


async def test_metrics_show_what_happened(shared):
    for _ in range(2):
        await shared.generate(request(input_ids=text_ids(100), cache_salt="same"))
    await shared.send(b"rubbish")
    _, text = await shared.get("/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["catalejo_engine_prefix_hit_tokens_total"]) == 96
    assert float(values["catalejo_engine_prefill_tokens_total"]) == 104
    assert float(values['catalejo_engine_choices_finished_total{reason="length"}']) == 2
    assert float(values['catalejo_engine_requests_refused_total{code="truncated"}']) == 1
    assert float(values['catalejo_engine_pages{state="used"}']) == 0
    assert float(values['catalejo_engine_pages{state="cached"}']) > 0
    assert float(values["catalejo_engine_step_seconds_count"]) > 0


async def test_flush_cache_forgets(shared):
    await shared.generate(request(input_ids=text_ids(100)))
    await shared.post("/flush_cache", {})
    await until(lambda: shared.service.core.cache.cached == 0)


async def test_a_draining_engine_is_not_healthy_and_refuses(shared):
    shared.service.draining = True
    assert (await shared.get("/health"))[0] == 503
    answer = await shared.send(frame())
    assert (answer.status, answer.error["code"]) == (503, "shutting_down")


async def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(shared, monkeypatch):
    forward = shared.service.model.forward
    monkeypatch.setattr(shared.service.model, "forward", lambda *_: 1 / 0)
    answer = await shared.send(frame())
    assert answer.status == 200
    (failure,) = [r for r in answer.replies if isinstance(r, wire.Failure)]
    assert (failure.code, failure.retryable) == ("engine_error", True)
    monkeypatch.setattr(shared.service.model, "forward", forward)
    assert len((await shared.generate(request())).choice()) == 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
async def test_a_signal_ends_streams_after_the_grace_period_and_the_process_cleanly(unused_tcp_port, number):
    command = [sys.executable, "-m", "engine.local.cli", "--model", str(TINY), "--port", str(unused_tcp_port)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*command, "--grace-s", "0.3"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
    )
    try:
        async with aiohttp.ClientSession() as session:
            engine = EngineClient(f"http://127.0.0.1:{unused_tcp_port}", None, session)
            for _ in range(600):
                with contextlib.suppress(aiohttp.ClientError):
                    await engine.get("/health")
                    break
                await asyncio.sleep(0.1)
            async with engine.open(frame(sampling=ENDLESS)) as response:
                await response.content.readline()
                process.send_signal(number)
                reader, replies = wire.ReplyReader(), []
                async for data in response.content.iter_any():
                    replies += reader.feed(data)
            assert replies[-1] == wire.Failure("shutting_down", "the engine is shutting down", True)
        code = await asyncio.to_thread(process.wait, 20)
        output = process.stdout.read().decode()
        assert code == 0, output
        assert "Traceback" not in output
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_running": 0}, "max_running is 0; it must be at least 1"),
        ({"dtype": "int4"}, "dtype is 'int4'; it must be one of auto, float32, bfloat16"),
        ({"log_level": "loud"}, "log_level is 'loud'"),
        ({"keep_alive_s": 0}, "keep_alive_s is 0; it must be positive"),
        ({"kv_pages": 0}, "kv_pages is 0"),
        ({"mood": 1}, "mood"),
    ],
    ids=str,
)
def test_a_bad_option_is_named_and_ends_the_start(capsys, fields, named):
    assert run(model=TINY, **fields) == 2
    assert named in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there_ends_the_start(capsys):
    assert run(model="no/such/place") == 1
    assert "neither a folder nor a hub name" in capsys.readouterr().err


def test_every_option_is_a_flag(capsys):
    given = parse(["--model", "m", "--kv-pages", "7", "--no-prefix-cache", "--dtype", "bfloat16", "--grace-s", "2.5"])
    assert given == EngineOptions(model="m", kv_pages=7, prefix_cache=False, dtype="bfloat16", grace_s=2.5)
    assert parse(["--kv-pages", "7"], model="m", port=5, token=None) == EngineOptions(model="m", port=5, kv_pages=7)
    with pytest.raises(SystemExit):
        parse(["--model", "m", "--chunk-tokens", "0"])
    assert "chunk_tokens is 0; it must be at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(EngineOptions):
        assert f"--{field.name.replace('_', '-')}" in text
    assert "Most prompt tokens in one step" in text

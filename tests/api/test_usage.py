"""Ledger, metrics, access log and the client agree on what each request used, however it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.observability.ledger.report import Total, read, totals
from tests.api.harness import MODEL, TINY, Stack
from tests.fixtures.media.png import data_url, png
from tests.mock_engine import MockEngine

COMPLETIONS = "/v1/completions"


@asynccontextmanager
async def metered(path: Path, script: list[dict[str, Any]] | None = None, **settings: Any) -> AsyncIterator[Stack]:
    observability = {"ledger": {"path": path, "flush_s": 0.05}, **settings.pop("observability", {})}
    async with Stack(script, observability=observability, **settings) as stack:
        yield stack


def by(path: Path, *names: str) -> dict[tuple[str, ...], Total]:
    return totals(read(path, 0, 1e12), names, {})[0]


async def test_every_outcome_is_accounted_with_the_tokens_it_made(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    script = [
        {"match": "broken", "pieces": ["Half ", "an answer"], "fail_after": 1, "fault": "error"},
        {"match": "slow", "pieces": ["One ", "two ", *["more "] * 200], "delay_ms": 20},
        {"pieces": ["<mm:think>", "Let me see", "</mm:think>", "All is well."]},
    ]
    async with metered(path, script) as stack:
        answers = [(await stack.chat("Hi")).json["usage"] for _ in range(3)]
        streamed = await stack.stream("Hi", stream_options={"include_usage": True})
        answers.append(streamed.chunks[-1]["usage"])
        several = await stack.post(COMPLETIONS, {"model": MODEL, "prompt": ["a b", "c d e"], "n": 2, "max_tokens": 3})
        answers.append(several.json["usage"])
        assert (await stack.post("/v1/chat/completions", b"{")).status == 400
        assert (await stack.chat("Hi", model="unknown")).status == 404
        assert (await stack.chat("Hi", n=99)).status == 400
        broken = await stack.stream("broken")
        assert broken.text() == "Half "
        async with stack.open_stream("slow") as response:
            for _ in range(4):  # role, and some content
                await response.content.readuntil(b"\n\n")
            response.close()
        await stack.settled()
        await stack.alone()
        counted = {
            outcome: await stack.metric(
                f'catalejo_generations_total{{gen_ai_request_model="{MODEL}",outcome="{outcome}"'
            )
            for outcome in ("ok", "failed", "aborted")
        }
        tokens = {
            kind: await stack.metric(
                f'catalejo_tokens_total{{gen_ai_request_model="{MODEL}",gen_ai_token_type="{kind}"'
            )
            for kind in ("input", "cached_input", "output", "reasoning")
        }
        refused = await stack.metric("catalejo_generations_total{") - sum(counted.values())
    assert counted == {"ok": 5, "failed": 1, "aborted": 1}
    assert refused == 3
    groups = by(path, "outcome")
    assert {k: t.sums["requests"] for (k,), t in groups.items()} == {**counted, "refused": 3}
    assert groups["refused",].sums["input_tokens"] == 0
    ok = groups["ok",].sums
    assert ok["input_tokens"] == sum(u["prompt_tokens"] for u in answers)
    assert ok["output_tokens"] == sum(u["completion_tokens"] for u in answers)
    assert ok["cached_tokens"] == sum(u["prompt_tokens_details"]["cached_tokens"] for u in answers)
    assert ok["reasoning_tokens"] == sum(u["completion_tokens_details"]["reasoning_tokens"] for u in answers) > 0
    half = len(stack.engine.checkpoint.encode("Half "))
    assert groups["failed",].sums["output_tokens"] == half
    assert 0 < groups["aborted",].sums["output_tokens"] < 200
    assert groups["aborted",].sums["input_tokens"] > 0
    whole = by(path)[()].sums
    assert tokens == {
        "input": whole["input_tokens"],
        "cached_input": whole["cached_tokens"],
        "output": whole["output_tokens"],
        "reasoning": whole["reasoning_tokens"],
    }


async def test_tenants_are_kept_apart_and_strangers_are_in_nobodys_account(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    tenants = [{"name": "acme", "api_keys": ["k-acme"]}, {"name": "zeta", "api_keys": ["k-zeta"]}]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    async with metered(path, admission={"tenants": tenants}) as stack:
        for key in ("k-acme", "k-zeta", "k-zeta", "k-none"):
            await stack.post("/v1/chat/completions", body, {"authorization": f"Bearer {key}"})
        await stack.get("/v1/models", headers={"authorization": "Bearer k-acme"})
    assert {k: t.sums["requests"] for k, t in by(path, "tenant").items()} == {("acme",): 1, ("zeta",): 2}


async def test_media_are_counted_when_an_engine_has_taken_them(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    picture = png(64, 48)
    part = {"type": "image_url", "image_url": {"url": data_url(picture)}}
    async with metered(path, [{"pieces": ["ok"]}, {"status": 400}]) as stack:
        assert (await stack.chat([part, part])).status == 200
        assert (await stack.chat([part])).status == 400
    groups = by(path, "outcome")
    assert (groups["ok",].sums["images"], groups["ok",].sums["media_bytes"]) == (2, 2 * len(picture))
    assert groups["refused",].sums["images"] == 0


async def test_a_request_that_moved_to_another_engine_is_accounted_once(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    sick = [{"pieces": ["x"], "fail_after": 0, "fault": "reset"}]
    async with MockEngine(TINY, sick) as ill, MockEngine(TINY, [{"pieces": ["fine"]}]) as well:
        engines = [{"url": ill.url, "name": "a"}, {"url": well.url, "name": "b"}]
        routing = {"policy": "round_robin", "breaker_failures": 1000}
        async with metered(path, engines=engines, routing=routing) as stack:
            used = [(await stack.chat("Hi")).json["usage"]["prompt_tokens"] for _ in range(4)]
            assert await stack.metric("catalejo_upstream_retries_total{") > 0
    total = by(path)[()]
    assert (total.sums["requests"], total.outcomes["ok"]) == (4, 4)
    assert total.sums["input_tokens"] == sum(used)


async def test_a_failing_disk_fails_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.ERROR, logger="catalejo.ledger"):
        async with metered(tmp_path / "file" / "usage.sqlite") as stack:
            for _ in range(5):
                assert (await stack.chat("Hi", max_tokens=2)).status == 200
            async with asyncio.timeout(30):
                while await stack.metric("catalejo_ledger_failures_total") < 2:
                    await asyncio.sleep(0.01)
    assert len([r for r in caplog.records if r.name == "catalejo.ledger"]) == 1


async def test_streams_cut_by_the_end_of_the_grace_period_are_accounted(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    async with metered(path, [{"pieces": ["more "] * 1000, "delay_ms": 20}]) as stack:
        async with stack.open_stream("Hi") as response:
            await response.content.readuntil(b"\n\n")
            await response.content.readuntil(b"\n\n")
            assert stack._server is not None
            stack._server.should_exit = True
            assert b"shutting_down" in await response.content.read()
    failed = by(path, "outcome")["failed",]
    assert failed.sums["requests"] == 1
    assert failed.sums["output_tokens"] >= 1


def accesses(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(r) for r in caplog.records if r.name == "catalejo.access"]


async def test_the_access_log_says_who_what_where_and_how_long(caplog: pytest.LogCaptureFixture) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(png(64, 48))}}
    async with Stack([{"pieces": ["<mm:think>", "Hm", "</mm:think>", "Yes."]}]) as stack:
        with caplog.at_level(logging.INFO, logger="catalejo.access"):
            await stack.chat([part, {"type": "text", "text": "very private words"}])
            await stack.stream([part, {"type": "text", "text": "very private words"}])
            while len(accesses(caplog)) < 2:  # a stream's last byte comes before its line
                await asyncio.sleep(0.01)
            await stack.post("/v1/chat/completions", b"{")
    first, second, bad = accesses(caplog)
    for entry in (first, second):
        assert (entry["tenant"], entry["model"], entry["status"]) == ("default", MODEL, 200)
        assert entry["request_id"].startswith("req_")
        assert entry["prompt_tokens"] > 0 and entry["completion_tokens"] > 0 and entry["reasoning_tokens"] > 0
        assert entry["images"] == 1 and entry["media_bytes"] > 0
        assert entry["worker"]
        for timing in ("duration_ms", "queue_ms", "prompt_ms", "media_ms", "ttft_ms"):
            assert entry[timing] >= 0, timing
        assert entry["ttft_ms"] <= entry["duration_ms"]
        assert "private" not in str(entry) and "base64" not in str(entry)
    assert (first["cached_tokens"], second["cached_tokens"] > 0) == (0, True)
    assert (bad["error_code"], bad["prompt_tokens"]) == ("invalid_json", 0)


async def test_prompt_text_is_logged_only_when_asked_and_only_so_much(caplog: pytest.LogCaptureFixture) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(png(64, 48))}}
    async with Stack(observability={"log_prompt_characters": 2000}) as stack:
        with caplog.at_level(logging.INFO, logger="catalejo.access"):
            await stack.chat([part, {"type": "text", "text": "quite public words"}], max_tokens=2)
            await stack.chat("long " * 5000, max_tokens=2)
    [one, two] = accesses(caplog)
    assert "quite public words" in one["prompt"] and "base64" not in one["prompt"]
    assert len(two["prompt"]) == 2000

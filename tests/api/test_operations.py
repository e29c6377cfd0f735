"""Models, health, readiness, metrics, docs, keys."""

from __future__ import annotations

import asyncio
import re

import pytest

from gateway.metrics import Metrics
from tests.api.harness import CHAT, MODEL, Stack

FIREWORKS = "accounts/fireworks/models/minimax-m3"


async def test_models_and_aliases(stack: Stack) -> None:
    listed = (await stack.get("/v1/models")).json
    assert listed["object"] == "list"
    assert listed["data"][0]["id"] == MODEL
    one = await stack.get(f"/v1/models/{FIREWORKS}")
    assert one.status == 200
    assert (one.json["id"], one.json["object"], one.json["root"]) == (FIREWORKS, "model", MODEL)
    assert one.json["context_length"] == 131072
    assert (await stack.get("/v1/models/none")).error["code"] == "model_not_found"
    answer = await stack.chat("Hi", model=FIREWORKS, max_tokens=3)
    assert answer.json["model"] == FIREWORKS


async def test_ready_follows_the_engine() -> None:
    async with Stack(routing={"health_interval_s": 0.05}) as s:
        assert (await s.get("/ready")).json["status"] == "ready"
        await s.engine.stop()
        for _ in range(200):
            ready = await s.get("/ready")
            if ready.status == 503:
                break
        assert ready.status == 503
        assert ready.headers["retry-after"]
        assert (await s.get("/health")).status == 200
        refused = await s.chat("Hi")
        assert (refused.status, refused.error["code"]) == (503, "engine_unavailable")
        assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/docs", "/v1/files", "/none", CHAT])
async def test_head_is_get_without_the_body(stack: Stack, path: str) -> None:
    """Symptom: load balancers that look with HEAD got a 405 from /health and /ready."""
    head, get = await stack.call("HEAD", path), await stack.get(path)
    assert (head.status, head.raw) == (get.status, b"")
    assert head.headers["content-type"] == get.headers["content-type"] and head.headers["x-request-id"]
    assert int(head.headers["content-length"]) > 0
    assert (await stack.get("/health")).json == {"status": "ok"}, "the connection can be used again"


async def test_head_follows_the_engine_and_works_on_the_second_port() -> None:
    async with Stack(operations={"port": 0}, routing={"health_interval_s": 0.05}) as s:
        [socket] = s.app.state.operations_sockets
        second = f"http://127.0.0.1:{socket.getsockname()[1]}/ready"
        async with s.session.head(second) as response:
            assert (response.status, await response.read()) == (200, b"")
        await s.engine.stop()
        async with asyncio.timeout(20):
            while (await s.call("HEAD", "/ready")).status != 503:
                await asyncio.sleep(0.01)
        async with s.session.head(second) as response:
            assert response.status == 503 and response.headers["retry-after"]


async def test_keys_are_demanded_on_all_but_the_open_paths() -> None:
    async with Stack(admission={"api_keys": ["sk-one"]}) as s:
        for path in ("/health", "/ready"):
            assert (await s.get(path)).status == 200
        for headers in ({}, {"authorization": "Bearer sk-two"}, {"authorization": "sk-one"}):
            for path in ("/v1/models", "/metrics"):
                refused = await s.get(path, headers=headers)
                assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
        allowed = await s.get("/v1/models", headers={"authorization": "Bearer sk-one"})
        assert allowed.status == 200


async def test_metrics_hold_every_name_and_bounded_labels(stack: Stack) -> None:
    await stack.chat("Hi", model="x" * 50, max_tokens=2)
    await stack.get("/no/such/path")
    await stack.chat("Hi", max_tokens=2)
    text = (await stack.get("/metrics")).raw.decode()
    for family in Metrics().registry.collect():
        assert re.search(rf"^# TYPE {family.name}", text, re.M), family.name
    assert "no/such" not in text
    assert "xxx" not in text


async def test_openapi_describes_the_request(stack: Stack) -> None:
    document = (await stack.get("/openapi.json")).json
    schema = document["components"]["schemas"]["ChatRequest"]
    assert {"messages", "tools", "thinking", "response_format"} <= set(schema["properties"])
    post = document["paths"]["/v1/chat/completions"]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("ChatRequest")
    page = await stack.get("/docs")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page.raw.decode()
    for name in document["components"]["schemas"]:
        assert f'id="{name}"' in page.raw.decode()
    assert not re.search(r"<script|(src|href)=\"?(https?:)?//|@import", page.raw.decode()), "works without a network"


async def test_tokenize_gives_the_prompt_that_chat_sends(stack: Stack) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there"}]}
    for path in ("/tokenize", "/v1/tokenize"):
        tokens = (await stack.post(path, body)).json
        await stack.post("/v1/chat/completions", {**body, "max_tokens": 1})
        assert tokens["tokens"] == stack.sent["ids"]
        assert tokens["count"] == len(tokens["tokens"])
    for path in ("/detokenize", "/v1/detokenize"):
        back = await stack.post(path, {"model": MODEL, "tokens": tokens["tokens"]})
        assert "Hello there" in back.json["prompt"]
    text = (await stack.post("/tokenize", {"prompt": "naïve 猫", "return_token_strs": True})).json
    assert "".join(text["token_strs"]).replace("\ufffd", "") != ""
    assert (await stack.post("/detokenize", {"tokens": text["tokens"]})).json == {"prompt": "naïve 猫"}
    wrong = await stack.post("/detokenize", {"tokens": [1, 99999]})
    assert wrong.error["param"] == "tokens[1]"


async def test_cors_and_keys_hold_on_the_fast_path() -> None:
    origin = {"origin": "https://app.example"}
    async with Stack(
        admission={"api_keys": ["k"], "protect_metrics": False}, cors_origins=["https://app.example"]
    ) as s:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        refused = await s.post("/v1/chat/completions", body, origin)
        assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
        answer = await s.post("/v1/chat/completions", body, {**origin, "authorization": "Bearer k"})
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        preflight = await s.call(
            "OPTIONS", "/v1/chat/completions", headers={**origin, "access-control-request-method": "POST"}
        )
        assert preflight.status == 200
        assert await s.metric('catalejo_http_requests_total{route="/v1/chat/completions",status="200"}') >= 1

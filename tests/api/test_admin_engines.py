"""What an operator may see and do with engines, and who is an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.api.harness import TINY, Answer, Stack
from tests.mock_engine import MockEngine

KEYS = {
    "protect_metrics": False,
    "tenants": [
        {"name": "ops", "api_keys": ["operator-key-0123456789"], "scopes": ["admin"]},
        {"name": "user", "api_keys": ["inference-key-0123456789"]},
    ],
}
OPERATOR = {"authorization": "Bearer operator-key-0123456789"}
USER = {"authorization": "Bearer inference-key-0123456789"}


@asynccontextmanager
async def guarded(name: str = "pool/a") -> AsyncIterator[Stack]:
    async with MockEngine(TINY, [{"pieces": ["Hi"], "finish": "stop"}]) as engine:
        url = engine.url.replace("://", "://u:secret@")
        async with Stack(engines=[{"url": url, "name": name}], admission=KEYS) as stack:
            stack.engine, unused = engine, stack.engine
            yield stack
            stack.engine = unused


async def drain(stack: Stack, method: str, name: str = "pool/a") -> Answer:
    return await stack.call(method, f"/admin/engines/{name}/drain", headers=OPERATOR)


async def test_the_list_tells_state_and_no_secret() -> None:
    async with guarded() as stack:
        answer = await stack.get("/admin/engines", headers=OPERATOR)
        assert answer.status == 200 and b"secret" not in answer.raw
        [engine] = answer.json["engines"]
        assert engine == {
            "name": "pool/a", "url": stack.engine.url, "state": "up", "healthy": True, "breaker": "closed",
            "ejected": False, "in_flight": 0,
            "pending_tokens": 0, "resident_tokens": 0, "load": engine["load"], "context_length": engine["context_length"],
            "indexed_tokens": 0, "index": "guess",
        }  # fmt: skip


async def test_drain_and_back() -> None:
    async with guarded() as stack:
        for _ in range(2):  # saying it twice is no mistake
            answer = await drain(stack, "POST")
            assert (answer.status, answer.json["state"], answer.json["healthy"]) == (200, "draining", True)
        assert await stack.metric('catalejo_worker_draining{worker="pool/a"}') == 1
        refused = await stack.post(
            "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}, USER
        )
        assert (refused.status, refused.error["code"]) == (503, "engine_unavailable")
        assert (await stack.get("/ready")).json["engines"] == {"pool/a": "draining"}
        for _ in range(2):
            answer = await drain(stack, "DELETE")
            assert (answer.status, answer.json["state"]) == (200, "up")
        served = await stack.post(
            "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}, USER
        )
        assert served.message["content"] == "Hi"
        assert await stack.metric('catalejo_worker_draining{worker="pool/a"}') == 0


async def test_an_unknown_engine_is_named() -> None:
    async with guarded() as stack:
        answer = await drain(stack, "POST", "nobody")
        assert (answer.status, answer.error["code"]) == (404, "not_found")
        assert "'nobody'" in answer.error["message"]
        assert (await stack.call("PUT", "/admin/engines/a/drain", headers=OPERATOR)).status == 405


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_only_the_admin_scope_may(method: str) -> None:
    path = "/admin/engines" if method == "GET" else "/admin/engines/pool/a/drain"
    async with guarded() as stack:
        assert (await stack.call(method, path, headers=USER)).error["code"] == "insufficient_permissions"
        assert (await stack.call(method, path)).error["code"] == "invalid_api_key"
        [engine] = (await stack.get("/admin/engines", headers=OPERATOR)).json["engines"]
        assert engine["state"] == "up"


async def test_a_gateway_without_keys_has_no_operator() -> None:
    async with Stack() as stack:
        assert (await stack.get("/admin/engines")).status == 403
        assert (await stack.call("POST", "/admin/engines/engine-0/drain")).status == 403

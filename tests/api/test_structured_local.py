"""Structured output and forced calls through the real embedded engine: answers validate, with thinking on and off.

The weights are random, so whatever is valid here is the grammar's doing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uvicorn

from gateway.prompt import Checkpoint
from tests.api.harness import TINY, Stack

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "n"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def local() -> AsyncIterator[Stack]:
    from engine.local.options import EngineOptions
    from engine.local.server import create_app

    app = create_app(EngineOptions(model=TINY))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    task = asyncio.create_task(server._serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with Stack(engines=[{"url": f"http://127.0.0.1:{port}"}], routing={"health_timeout_s": 600}) as s:
        yield s
    server.should_exit = True
    await task


async def ask(local: Stack, thinking: str, **fields: Any) -> dict[str, Any]:
    end = Checkpoint.load(TINY).think_end_id
    hurry = {"logit_bias": {str(end): 6}} if thinking == "enabled" else {}  # random weights think for ever
    answer = await local.chat("Hi", thinking=thinking, max_tokens=600, seed=1, **hurry, **fields)
    assert answer.status == 200, answer.raw
    choice = answer.json["choices"][0]
    assert bool(choice["message"].get("reasoning_content")) == (thinking == "enabled")
    return choice


def check(value: Any) -> None:
    assert set(value) == {"city", "n"}
    assert value["city"] in ("Paris", "Rome")
    assert value["n"] in range(10)


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
async def test_json_schema(local: Stack, thinking: str) -> None:
    choice = await ask(local, thinking, response_format=FORMAT)
    check(json.loads(choice["message"]["content"]))
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
@pytest.mark.parametrize(("choice", "finish"), [("required", "tool_calls"), (NAMED, "stop")], ids=["required", "named"])
async def test_forced_call(local: Stack, thinking: str, choice: Any, finish: str) -> None:
    answer = await ask(local, thinking, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    [call] = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    check(json.loads(call["function"]["arguments"]))
    assert answer["message"]["content"] is None
    assert answer["finish_reason"] == finish


async def test_streamed_equals_plain(local: Stack) -> None:
    fields: dict[str, Any] = {"response_format": FORMAT, "temperature": 0, "max_tokens": 600, "thinking": "disabled"}
    plain = await local.chat("Hi", **fields)
    events = await local.stream("Hi", **fields)
    assert events.text() == plain.message["content"]
    check(json.loads(events.text()))


async def test_a_schema_the_engine_cannot_compile_is_a_400_before_the_200(local: Stack) -> None:
    bad = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}},
    }
    for streamed in (False, True):
        answer = await local.chat("Hi", response_format=bad, thinking="disabled", stream=streamed, max_tokens=5)
        assert answer.status == 400, answer.raw
        assert (answer.error["param"], answer.error["code"]) == ("response_format", "invalid_schema")
        assert ".cc" not in answer.error["message"] and "nowhere" in answer.error["message"]

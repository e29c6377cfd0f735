"""SGLang as it comes, without our plugin: the gateway serves text from it, and refuses pictures by name."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.client import EngineClient
from tests.sglang.live.cases import HELLO, OFF, ON, PARIS, STREAM, SUM, WEATHER, picture, text, user
from tests.sglang.live.stack import gateway_in_front
from tests.sglang.live.talk import Record, ask

DEMO = Path(__file__).parents[3] / "engine" / "checkpoints" / "demo" / "model"
ENGINE = os.environ.get("CATALEJO_CONTRACT_URL", "")
TOKEN = os.environ.get("CATALEJO_CONTRACT_TOKEN")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway_in_front(ENGINE, DEMO, "demo", tmp_path_factory.mktemp("gateway")) as url:
        yield url


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as made:
        yield made


async def chat(session: aiohttp.ClientSession, gateway: str, messages: Any = HELLO, **fields: Any) -> Record:
    body = {"model": "demo", "temperature": 0, "max_tokens": 30, "messages": messages, **fields}
    return await ask(session, gateway, None, body)


async def test_it_is_without_our_plugin(session: aiohttp.ClientSession) -> None:
    status, info = await EngineClient(ENGINE, TOKEN, session).get("/model_info")
    assert status == 200
    assert "catalejo" not in info
    status, _ = await EngineClient(ENGINE, TOKEN, session).post("/catalejo/v1/generate", {})
    assert status == 404


async def test_text_and_the_same_streamed(session: aiohttp.ClientSession, gateway: str) -> None:
    plain, streamed = await asyncio.gather(chat(session, gateway), chat(session, gateway, **STREAM))
    assert "tiny demonstration model" in plain["choices"][0]["content"]
    assert streamed["choices"] == plain["choices"]
    assert streamed["ends with [DONE]"]
    assert streamed["completion_tokens"] == plain["completion_tokens"] > 5


async def test_thinking_tools_and_several_choices(session: aiohttp.ClientSession, gateway: str) -> None:
    thought, called, two = await asyncio.gather(
        chat(session, gateway, SUM, thinking=ON, max_tokens=60),
        chat(session, gateway, PARIS, tools=[WEATHER], max_tokens=60),
        chat(session, gateway, n=2, **STREAM),
    )
    assert "85" in thought["choices"][0]["reasoning"]
    assert called["choices"][0]["tool_calls"] == [("get_weather", {"city": "Paris"})]
    assert called["choices"][0]["finish_reason"] == "tool_calls"
    assert two["choices"][0] == two["choices"][1]


async def test_logprobs_have_a_row_per_token(session: aiohttp.ClientSession, gateway: str) -> None:
    asked = {"logprobs": True, "top_logprobs": 2, "thinking": OFF}
    for more in ({}, STREAM):
        answer = await chat(session, gateway, **asked, **more)
        rows = answer["choices"][0]["logprobs"]
        assert len(rows) == answer["completion_tokens"]
        assert all(logprob <= 0 and alternatives == 2 for _, logprob, alternatives in rows)


async def test_a_schema_binds_the_answer_and_not_the_thinking(session: aiohttp.ClientSession, gateway: str) -> None:
    """SGLang's own `require_reasoning` waits for the end of the thinking; it needs --reasoning-parser."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}
    at_once, thought = await asyncio.gather(
        chat(session, gateway, [user("A city?")], response_format=wanted, thinking=OFF, max_tokens=60),
        chat(session, gateway, SUM, response_format=wanted, thinking=ON, max_tokens=120),
    )
    assert json.loads(at_once["choices"][0]["content"])["city"] in ("Rome", "Oslo")
    assert "85" in thought["choices"][0]["reasoning"]
    assert json.loads(thought["choices"][0]["content"])["city"] in ("Rome", "Oslo")


async def test_a_picture_is_refused_with_the_reason(session: aiohttp.ClientSession, gateway: str) -> None:
    asked = [user([picture("ellipse", "red"), text("What colour?")])]
    for more in ({}, STREAM):
        answer = await chat(session, gateway, asked, **more)
        assert answer["status"] == 400
        assert "pictures" in answer["said"] or "images" in answer["said"] or "media" in answer["said"]


async def test_what_the_engine_refuses_is_told(session: aiohttp.ClientSession, gateway: str) -> None:
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wizard"}}}}
    answer = await chat(session, gateway, **asked)
    assert (answer["status"], answer["error in"]) == (400, "error")
    assert "wizard" in answer["said"]
    assert (await chat(session, gateway, max_tokens=3))["status"] == 200


async def test_a_client_that_leaves_frees_the_engine(session: aiohttp.ClientSession, gateway: str) -> None:
    engine = EngineClient(ENGINE, TOKEN, session)
    body = {"model": "demo", "messages": HELLO, "max_tokens": 4000, "stream": True, "logit_bias": {"4082": -100}}
    async with session.post(f"{gateway}/v1/chat/completions", json=body) as response:
        await response.content.readuntil(b"\n\n")
        assert await engine.busy_within(20)
        response.close()
    assert await engine.idle_within(30)

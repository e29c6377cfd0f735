"""openai-agents in chat mode: several turns with tools, pictures, typed results, handoffs, and a run that is left."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.conformance.clients.test_openai_media import data_url, png
from tests.conformance.stack import Stack, call_block, says


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture
def agent(stack: Stack) -> Agent:
    client = AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0)
    model = OpenAIChatCompletionsModel(model=stack.model, openai_client=client)
    return Agent(name="guide", instructions="Be brief.", model=model, tools=[get_weather])


def turns(stack: Stack) -> None:
    stack.script(
        says(call_block(("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"}))),
        says(call_block(("get_weather", {"city": "Bern"}))),
        says("Sunny everywhere."),
    )


async def test_several_turns(stack: Stack, agent: Agent) -> None:
    turns(stack)
    result = await Runner.run(agent, "Weather?", run_config=RunConfig(tracing_disabled=True))
    assert result.final_output == "Sunny everywhere."
    last = stack.requests()[2]["text"]
    for city in ("Rome", "Oslo", "Bern"):
        assert f"sunny in {city}" in last
    assert "Be brief." in last


async def test_several_turns_streamed(stack: Stack, agent: Agent) -> None:
    turns(stack)
    result = Runner.run_streamed(agent, "Weather?", run_config=RunConfig(tracing_disabled=True))
    kinds = [event.type async for event in result.stream_events()]
    assert result.final_output == "Sunny everywhere."
    assert kinds.count("run_item_stream_event") >= 7
    assert len(stack.requests()) == 3


async def test_a_picture_and_a_tool_streamed(stack: Stack, agent: Agent) -> None:
    stack.script(says(call_block(("get_weather", {"city": "Rome"}))), says("Sunny, as in the picture."))
    picture = {"type": "input_image", "image_url": data_url(png(80, 60, 5)), "detail": "low"}
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "Is it like this now?"}, picture]}]
    result = Runner.run_streamed(agent, asked, run_config=RunConfig(tracing_disabled=True))
    async for _ in result.stream_events():
        pass
    assert result.final_output == "Sunny, as in the picture."
    first, second = stack.requests()
    assert len(first["items"]) == len(second["items"]) == 1
    assert first["items"][0]["hash"] == second["items"][0]["hash"]
    assert "sunny in Rome" in second["text"]


async def test_leaving_a_streamed_run_aborts_the_engines_request(stack: Stack, agent: Agent) -> None:
    stack.script({"pieces": ["again "] * 3000, "delay_ms": 10})
    result = Runner.run_streamed(agent, "Talk.", run_config=RunConfig(tracing_disabled=True))
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            result.cancel()
    [abort] = await asyncio.to_thread(stack.aborts)
    assert abort["phase"] == "decode"


class Report(BaseModel):
    city: str
    sunny: bool


async def test_a_typed_result_beside_tools(stack: Stack, agent: Agent) -> None:
    stack.script(says(call_block(("get_weather", {"city": "Rome"}))), says('{"city": "Rome", "sunny": true}'))
    result = await Runner.run(agent.clone(output_type=Report), "Rome?", run_config=RunConfig(tracing_disabled=True))
    assert result.final_output == Report(city="Rome", sunny=True)
    grammars = [r["grammar"]["value"] for r in stack.requests()]
    assert all("get_weather" in g and "sunny" in g for g in grammars), "a call or the report, nothing else"


async def test_a_handoff_between_agents(stack: Stack, agent: Agent) -> None:
    expert = agent.clone(name="expert", instructions="Know Rome.")
    guide = agent.clone(name="guide", handoffs=[expert], tools=[])
    stack.script(says(call_block(("transfer_to_expert", {}))), says("Rome is sunny."))
    result = await Runner.run(guide, "Rome?", run_config=RunConfig(tracing_disabled=True))
    assert (result.final_output, result.last_agent.name) == ("Rome is sunny.", "expert")
    assert "Know Rome." in stack.requests()[1]["text"]

"""openai-agents in chat mode: several turns with tools, plain and streamed."""

from __future__ import annotations

import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

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

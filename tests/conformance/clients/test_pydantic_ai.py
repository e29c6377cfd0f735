"""pydantic-ai: a tool loop with a typed result, plain and streamed."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.conformance.stack import Stack, call_block, says


class Report(BaseModel):
    city: str
    degrees: int


@pytest.fixture
def model(stack: Stack) -> OpenAIChatModel:
    return OpenAIChatModel(stack.model, provider=OpenAIProvider(base_url=f"{stack.url}/v1", api_key=stack.key))


async def test_tool_loop_with_a_typed_result(stack: Stack, model: OpenAIChatModel) -> None:
    stack.script(
        says(call_block(("get_temperature", {"city": "Rome"}))),
        says(call_block(("final_result", {"city": "Rome", "degrees": "21"}))),
    )
    agent = Agent(model, output_type=Report)

    @agent.tool_plain
    def get_temperature(city: str) -> str:
        return f"{city}: 21 degrees"

    result = await agent.run("How warm is Rome?")
    assert result.output == Report(city="Rome", degrees=21)
    assert "Rome: 21 degrees" in stack.requests()[1]["text"]


async def test_a_wrong_result_is_asked_for_again(stack: Stack, model: OpenAIChatModel) -> None:
    stack.script(
        says(call_block(("final_result", {"city": "Rome", "degrees": "warm"}))),
        says(call_block(("final_result", {"city": "Rome", "degrees": "21"}))),
    )
    result = await Agent(model, output_type=Report).run("How warm is Rome?")
    assert result.output == Report(city="Rome", degrees=21)
    assert len(stack.requests()) == 2


async def test_streamed_text(stack: Stack, model: OpenAIChatModel) -> None:
    stack.script(says("It is warm in Rome."))
    async with Agent(model).run_stream("How warm is Rome?") as result:
        pieces = [piece async for piece in result.stream_text(delta=True)]
    assert "".join(pieces) == "It is warm in Rome."


async def test_reasoning_becomes_a_thinking_part(stack: Stack, model: OpenAIChatModel) -> None:
    stack.script(says("Hm.</mm:think>Yes."))
    result = await Agent(model).run("Well?", model_settings={"extra_body": {"thinking": "enabled"}})
    assert result.output == "Yes."
    parts = [part for message in result.new_messages() for part in message.parts]
    assert [p.content for p in parts if p.part_kind == "thinking"] == ["Hm."]

"""langchain-openai: bound tools with parallel calls, streamed and not, and summed usage."""

from __future__ import annotations

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.conformance.stack import Stack, call_block, says

CALLS = "Let me see." + call_block(("get_weather", {"city": "Rome"}), ("get_time", {"zone": "CET"}))


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@tool
def get_time(zone: str) -> str:
    """The time in a zone."""
    return f"noon in {zone}"


TOOLS = {t.name: t for t in (get_weather, get_time)}


@pytest.fixture
def model(stack: Stack) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{stack.url}/v1", api_key=stack.key, model=stack.model, stream_usage=True, max_retries=0
    )


def test_tool_loop_with_parallel_calls(stack: Stack, model: ChatOpenAI) -> None:
    stack.script(says(CALLS), says("Sunny at noon."))
    bound = model.bind_tools(list(TOOLS.values()))
    messages: list[object] = [HumanMessage("Weather and time?")]
    answer = bound.invoke(messages)
    assert [(c["name"], c["args"]) for c in answer.tool_calls] == [
        ("get_weather", {"city": "Rome"}),
        ("get_time", {"zone": "CET"}),
    ]
    assert answer.content == "Let me see."
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    messages.append(answer)
    messages += [ToolMessage(TOOLS[c["name"]].invoke(c["args"]), tool_call_id=c["id"]) for c in answer.tool_calls]
    assert bound.invoke(messages).content == "Sunny at noon."
    prompt = stack.requests()[1]["text"]
    assert "sunny in Rome" in prompt
    assert "noon in CET" in prompt


def test_streamed_chunks_add_up(stack: Stack, model: ChatOpenAI) -> None:
    stack.script(says(CALLS))
    bound = model.bind_tools(list(TOOLS.values()))
    whole = bound.invoke("Weather and time?")
    chunks = list(bound.stream("Weather and time?"))
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert [(c["name"], c["args"]) for c in total.tool_calls] == [(c["name"], c["args"]) for c in whole.tool_calls]
    assert total.content == whole.content
    assert total.usage_metadata is not None and whole.usage_metadata is not None
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert total.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]


def test_structured_output(stack: Stack, model: ChatOpenAI) -> None:
    stack.script(says('{"city": "Rome"}'))
    schema = {"title": "Place", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
    chain = model.with_structured_output(schema, method="json_schema", strict=True)
    assert chain.invoke("Where?") == {"city": "Rome"}
    assert stack.requests()[0]["grammar"] is not None

"""Tools, reasoning and the prefix cache, judged by the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Model, image
from .drawing import Item, draw

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIMER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Start a timer",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    },
}


@pytest.mark.parametrize("stream", [False, True])
def test_tool_round_trip_with_the_openai_client(demo: Model, stream: bool) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
        fields: dict[str, Any] = {"model": "demo", "tools": [TIMER, WEATHER], "temperature": 0}
        if stream:
            with client.chat.completions.stream(messages=messages, **fields) as events:
                for _ in events:
                    pass
                choice = events.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(messages=messages, **fields).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        sent = {"name": call.function.name, "arguments": call.function.arguments}
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call.id, "type": "function", "function": sent}],
            }
        )
        messages.append(
            {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'}
        )
        answer = client.chat.completions.create(messages=messages, **fields).choices[0].message.content
    assert "21 degrees" in answer
    assert "sunny" in answer
    assert "Paris" in answer


def test_arguments_follow_the_schema(demo: Model) -> None:
    """An integer stays an integer, and the right tool of two is called."""
    answer = demo.reply([{"role": "user", "content": "Set a timer for 25 minutes."}], tools=[WEATHER, TIMER])
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "set_timer"
    assert json.loads(call["function"]["arguments"]) == {"minutes": 25}


def test_no_tool_is_called_for_a_greeting(demo: Model) -> None:
    answer = demo.reply([{"role": "user", "content": "Hello!"}], tools=[WEATHER])
    assert not answer["choices"][0]["message"].get("tool_calls")
    assert "tiny demonstration model" in answer["choices"][0]["message"]["content"]


def test_thinking_modes(demo: Model) -> None:
    """Enabled thinks, disabled does not, adaptive thinks about a sum and not about a greeting."""
    seen = {}
    for mode, text in (
        ("enabled", "Hello"),
        ("disabled", "What is 27 + 58?"),
        ("adaptive", "What is 27 + 58?"),
        ("adaptive", "Hello"),
    ):
        answer = demo.reply([{"role": "user", "content": text}], thinking={"type": mode})
        message = answer["choices"][0]["message"]
        seen[mode, text] = bool(message.get("reasoning_content"))
        content = message["content"] or ""
        assert "mm:think" not in content
        assert ("85" if "27" in text else "Hello") in content
    assert seen == {
        ("enabled", "Hello"): True,
        ("disabled", "What is 27 + 58?"): False,
        ("adaptive", "What is 27 + 58?"): True,
        ("adaptive", "Hello"): False,
    }


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Sort these numbers: 42, 7, 19", "7, 19, 42"),
        ("Repeat after me: blue lamp 77", "blue lamp 77"),
        ("What is 8 + 5?", "13"),
        ("Write a poem about the sea", "I cannot help with that"),
    ],
)
def test_small_skills(demo: Model, question: str, answer: str) -> None:
    assert answer in demo.ask(question, thinking="adaptive")


def test_earlier_turns_are_remembered(demo: Model) -> None:
    messages = [
        {"role": "user", "content": "My name is Rosa."},
        {"role": "assistant", "content": "I will remember that your name is Rosa."},
        {"role": "user", "content": "What is my name?"},
    ]
    assert "Rosa" in demo.reply(messages)["choices"][0]["message"]["content"]


def cached(answer: dict[str, Any]) -> int:
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def test_a_prefix_cache_hit_gives_the_same_answer(demo: Model) -> None:
    content = [image(draw(Item("orange", "star"), size=(180, 180))), {"type": "text", "text": "Describe this picture."}]
    messages = [{"role": "user", "content": content}]
    first, second = demo.reply(messages), demo.reply(messages)
    assert cached(second) > 0
    texts = [a["choices"][0]["message"]["content"] for a in (first, second)]
    assert texts[0] == texts[1]
    assert "orange star" in texts[0]


def test_another_picture_of_the_same_size_is_not_answered_from_the_cache(demo: Model) -> None:
    """Same ids, same grid: only the pixels differ, so only the item's hash can tell the prompts apart."""
    answers = [demo.ask(image(draw(Item(c, "square"))), "What colour is the square?") for c in ("red", "blue", "green")]
    assert [c in a for c, a in zip(("red", "blue", "green"), answers, strict=True)] == [True] * 3


def test_parse_with_a_pydantic_model_finishes(demo: Model) -> None:
    openai, pydantic = pytest.importorskip("openai"), pytest.importorskip("pydantic")

    class City(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        name: str

    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "Name a city"}]
        for fields in ({}, {"reasoning_effort": "none"}):
            answer = client.chat.completions.parse(
                model="demo", messages=messages, response_format=City, max_tokens=200, temperature=0, seed=1, **fields
            )
            assert answer.choices[0].finish_reason == "stop"
            assert isinstance(answer.choices[0].message.parsed.name, str)

"""openai (Python): plain and streamed answers, the stream helper, parsed answers, extra fields."""

from __future__ import annotations

import json

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.conformance.stack import Stack, call_block, says

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER_CALLS = call_block(
    ("get_weather", {"city": "Rome", "days": "3"}), ("get_weather", {"city": "São Paulo", "days": "1"})
)


class get_weather(BaseModel):
    """The weather of the next days."""

    city: str
    days: int


class Trip(BaseModel):
    city: str
    days: int


@pytest.fixture
def client(stack: Stack) -> OpenAI:
    return OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0)


def test_stream_and_plain_answer_have_the_same_text_and_usage(stack: Stack, client: OpenAI) -> None:
    text = "Grüße, 世界! 🦊 Once upon a time"
    stack.script(says(text))
    whole = client.chat.completions.create(model=stack.model, messages=HELLO)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        client.chat.completions.create(
            model=stack.model, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert len({c.id for c in chunks}) == 1


def test_reasoning_is_its_own_field(stack: Stack, client: OpenAI) -> None:
    stack.script(says("First the sum.</mm:think>It is 4."))
    thinking = {"thinking": {"type": "enabled"}}
    whole = client.chat.completions.create(model=stack.model, messages=HELLO, extra_body=thinking)
    message = whole.choices[0].message
    assert message.content == "It is 4."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "First the sum."
    stream = client.chat.completions.create(model=stack.model, messages=HELLO, extra_body=thinking, stream=True)
    reasoning = content = ""
    for chunk in stream:
        delta = chunk.choices[0].delta
        reasoning += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
    assert (reasoning, content) == ("First the sum.", "It is 4.")


def test_stream_helper_tells_arguments_as_they_come_and_when_done(stack: Stack, client: OpenAI) -> None:
    stack.script(says(WEATHER_CALLS))
    deltas: dict[int, str] = {0: "", 1: ""}
    done = []
    with client.chat.completions.stream(
        model=stack.model, messages=HELLO, tools=[openai.pydantic_function_tool(get_weather)]
    ) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                deltas[event.index] += event.arguments_delta
            elif event.type == "tool_calls.function.arguments.done":
                done.append((event.index, event.name, json.loads(event.arguments)))
        final = stream.get_final_completion()
    expected = [{"city": "Rome", "days": 3}, {"city": "São Paulo", "days": 1}]
    assert [json.loads(deltas[i]) for i in (0, 1)] == expected
    assert done == [(i, "get_weather", e) for i, e in enumerate(expected)]
    calls = final.choices[0].message.tool_calls or []
    assert [c.function.parsed_arguments for c in calls] == [get_weather(**e) for e in expected]
    assert len({c.id for c in calls}) == 2
    assert final.choices[0].finish_reason == "tool_calls"


def test_stream_helper_tells_content(stack: Stack, client: OpenAI) -> None:
    stack.script(says("One two three."))
    with client.chat.completions.stream(model=stack.model, messages=HELLO) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert kinds[-1] == "content.done"
    assert final.choices[0].message.content == "One two three."


def test_parse_gives_the_model_with_reasoning_on(stack: Stack, client: OpenAI) -> None:
    stack.script(says('Rome is nice.</mm:think>{"city": "Rome", "days": 3}'))
    answer = client.chat.completions.parse(
        model=stack.model, messages=HELLO, response_format=Trip, extra_body={"thinking": "enabled"}
    )
    assert answer.choices[0].message.parsed == Trip(city="Rome", days=3)
    [seen] = stack.requests()
    grammar = seen["grammar"]
    assert "city" in grammar["value"]
    assert grammar["after_ids"] or "think" in grammar["value"], "the grammar must leave the thinking free"


def test_parse_refuses_an_answer_that_was_cut(stack: Stack, client: OpenAI) -> None:
    stack.script(says('{"city": "Rome"', finish="length"))
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=stack.model, messages=HELLO, response_format=Trip, max_tokens=4)


def test_parallel_calls_in_a_plain_answer(stack: Stack, client: OpenAI) -> None:
    stack.script(says("Let me look." + WEATHER_CALLS))
    answer = client.chat.completions.create(
        model=stack.model, messages=HELLO, tools=[openai.pydantic_function_tool(get_weather)]
    )
    message = answer.choices[0].message
    assert message.content == "Let me look."
    assert [json.loads(c.function.arguments) for c in message.tool_calls or []] == [
        {"city": "Rome", "days": 3},
        {"city": "São Paulo", "days": 1},
    ]
    history = [
        *HELLO,
        message.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in message.tool_calls or []),
    ]
    stack.script(says("Sunny in both."))
    again = client.chat.completions.create(
        model=stack.model, messages=history, tools=[openai.pydantic_function_tool(get_weather)]
    )
    assert again.choices[0].message.content == "Sunny in both."
    assert again.choices[0].message.tool_calls is None
    assert stack.requests()[0]["text"].count("sunny") == 2


def test_extra_body_reaches_the_engine_and_unknown_fields_are_ignored(stack: Stack, client: OpenAI) -> None:
    client.chat.completions.create(
        model=stack.model,
        messages=HELLO,
        temperature=0.6,
        top_p=0.9,
        seed=7,
        extra_body={"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"thinking_mode": "disabled"}, "mood": "good"},
    )
    [seen] = stack.requests()
    sampling = seen["sampling"]
    assert (sampling["top_k"], sampling["min_p"], sampling["sampling_seed"]) == (5, 0.1, 7)
    assert (sampling["temperature"], sampling["top_p"]) == (0.6, 0.9)
    assert seen["text"].endswith("]~b]ai\n</mm:think>")


def test_several_choices(stack: Stack, client: OpenAI) -> None:
    stack.script({"choices": [{"pieces": ["red", [498]]}, {"pieces": ["blue", [498]]}, {"pieces": ["green", [498]]}]})
    whole = client.chat.completions.create(model=stack.model, messages=HELLO, n=3)
    assert [c.message.content for c in whole.choices] == ["red", "blue", "green"]
    texts = {0: "", 1: "", 2: ""}
    for chunk in client.chat.completions.create(model=stack.model, messages=HELLO, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert list(texts.values()) == ["red", "blue", "green"]


def test_logprobs_one_row_per_token(stack: Stack, client: OpenAI) -> None:
    stack.script(says("One two three."))
    whole = client.chat.completions.create(model=stack.model, messages=HELLO, logprobs=True, top_logprobs=2)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and whole.usage is not None
    assert len(logprobs.content) == whole.usage.completion_tokens
    rows = []
    for chunk in client.chat.completions.create(
        model=stack.model, messages=HELLO, logprobs=True, top_logprobs=2, stream=True
    ):
        for choice in chunk.choices:
            rows += choice.logprobs.content or [] if choice.logprobs else []
    assert [(r.token, r.logprob, len(r.top_logprobs)) for r in rows] == [
        (r.token, r.logprob, len(r.top_logprobs)) for r in logprobs.content
    ]


def test_models_are_listed_and_found(stack: Stack, client: OpenAI) -> None:
    assert stack.model in [m.id for m in client.models.list()]
    assert client.models.retrieve(stack.model).id == stack.model


def test_plain_completions(stack: Stack, client: OpenAI) -> None:
    stack.script(says(" a time"))
    whole = client.completions.create(model=stack.model, prompt="Once upon", max_tokens=8)
    assert whole.choices[0].text.startswith(" a time")
    chunks = client.completions.create(model=stack.model, prompt="Once upon", max_tokens=8, stream=True)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text


async def test_async_client(stack: Stack) -> None:
    stack.script(says("Hello back."))
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key) as client:
        stream = await client.chat.completions.create(model=stack.model, messages=HELLO, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "Hello back."

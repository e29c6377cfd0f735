"""openai (Python): stop strings, usage details, tool choice, uploaded files, long streams."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.conformance.clients.test_openai_media import png
from tests.conformance.stack import Stack, call_block, says

HELLO: Any = [{"role": "user", "content": "Hello"}]
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}}}}  # fmt: skip


@pytest.fixture
def client(stack: Stack) -> OpenAI:
    return OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0)


def read(stream: Any) -> tuple[str, str | None]:
    """(text, finish_reason) of a stream."""
    text, finish = "", None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return text, finish


def test_stop_string_across_pieces(stack: Stack, client: OpenAI) -> None:
    stack.script(says("One two three four", delay_ms=5))
    whole = client.chat.completions.create(model=stack.model, messages=HELLO, stop=["two thr", "zzz"])
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("One ", "stop")
    streamed = client.chat.completions.create(model=stack.model, messages=HELLO, stop=["two thr"], stream=True)
    assert read(streamed) == ("One ", "stop")
    for seen in stack.requests():
        assert "stop" not in seen["sampling"]


def test_max_tokens_ends_with_length(stack: Stack, client: OpenAI) -> None:
    stack.script({"pieces": [[72], [73], [74], [75]]})
    for field in ("max_tokens", "max_completion_tokens"):
        fields: Any = {field: 3}
        whole = client.chat.completions.create(model=stack.model, messages=HELLO, **fields)
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None and whole.usage.completion_tokens == 3
        assert (
            read(client.chat.completions.create(model=stack.model, messages=HELLO, stream=True, **fields))[1]
            == "length"
        )


def test_usage_tells_cached_and_reasoning_tokens(stack: Stack, client: OpenAI) -> None:
    stack.script(says("Hm, well.</mm:think>Yes.", cached_tokens=5))
    fields: Any = {"model": stack.model, "messages": HELLO, "extra_body": {"thinking": "enabled"}}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert whole.usage is not None
    assert chunks[-1].usage == whole.usage
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 5
    reasoning = whole.usage.completion_tokens_details.reasoning_tokens
    assert reasoning is not None and 0 < reasoning < whole.usage.completion_tokens
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


@pytest.mark.parametrize(
    "choice",
    ["auto", "required", {"type": "function", "function": {"name": "look"}}],
    ids=["auto", "required", "named"],
)
def test_tool_choice_finishes_alike_in_both_modes(stack: Stack, client: OpenAI, choice: Any) -> None:
    stack.script(says(call_block(("look", {"at": "Rome"}))))
    fields: Any = {"model": stack.model, "messages": HELLO, "tools": [TOOL], "tool_choice": choice}
    whole = client.chat.completions.create(**fields)
    calls = whole.choices[0].message.tool_calls or []
    assert [(c.function.name, c.function.arguments.replace(" ", "")) for c in calls] == [("look", '{"at":"Rome"}')]
    assert read(client.chat.completions.create(**fields, stream=True))[1] == whole.choices[0].finish_reason
    assert (stack.requests()[0]["grammar"] is not None) == (choice != "auto")


def test_tool_choice_none_hides_the_tools(stack: Stack, client: OpenAI) -> None:
    stack.script(says("No."))
    whole = client.chat.completions.create(model=stack.model, messages=HELLO, tools=[TOOL], tool_choice="none")
    assert whole.choices[0].message.content == "No."
    assert "look" not in stack.requests()[0]["text"]


def test_an_uploaded_picture_is_used_by_its_id_and_can_be_deleted(stack: Stack, client: OpenAI) -> None:
    stack.script(says("A picture."))
    file = client.files.create(file=("p.png", png(80, 60, 6)), purpose="vision")
    assert client.files.retrieve(file.id).bytes == len(png(80, 60, 6))
    content: Any = [{"type": "image_file", "image_file": {"file_id": file.id}}, {"type": "text", "text": "What?"}]
    messages: Any = [{"role": "user", "content": content}]
    assert (
        client.chat.completions.create(model=stack.model, messages=messages).choices[0].message.content == "A picture."
    )
    assert len(stack.requests()[0]["items"]) == 1
    assert file.id in [f.id for f in client.files.list()]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=stack.model, messages=messages)


def test_a_long_prefill_is_survived_in_silence(stack: Stack, client: OpenAI) -> None:
    """Comments keep the stream alive; the client hands on none of them."""
    stack.script(says("At last.", first_delay_ms=2500))
    began = time.monotonic()
    assert read(client.chat.completions.create(model=stack.model, messages=HELLO, stream=True)) == ("At last.", "stop")
    assert time.monotonic() - began >= 2.5


def test_developer_and_system_messages_and_a_name(stack: Stack, client: OpenAI) -> None:
    stack.script(says("Yes."))
    for role in ("system", "developer"):
        messages: Any = [
            {"role": role, "content": "Answer in Latin."},
            {"role": "user", "content": [{"type": "text", "text": "Well?"}], "name": "ada"},
        ]
        client.chat.completions.create(model=stack.model, messages=messages)
    assert all("Answer in Latin." in r["text"] for r in stack.requests())


def test_ten_thousand_small_pieces(stack: Stack, client: OpenAI) -> None:
    stack.script({"pieces": [[72 + i % 20] for i in range(10_000)] + [[498]]})
    text, finish = read(client.chat.completions.create(model=stack.model, messages=HELLO, stream=True))
    assert finish == "stop"
    assert len(text) >= 10_000
    assert client.chat.completions.create(model=stack.model, messages=HELLO).choices[0].message.content == text

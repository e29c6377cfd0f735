"""litellm as a client: answers, streams with usage, retries, error classes."""

from __future__ import annotations

from typing import Any

import litellm
import pytest

from tests.conformance.stack import CONTEXT_LENGTH, Stack, call_block, says

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]  # fmt: skip


def ask(stack: Stack, **fields: Any) -> Any:
    call = {"messages": HELLO, "num_retries": 0, **fields}
    return litellm.completion(model=f"openai/{stack.model}", api_base=f"{stack.url}/v1", api_key=stack.key, **call)


def test_plain_and_streamed_answers_agree(stack: Stack) -> None:
    stack.script(says("Hello back."))
    whole = ask(stack)
    assert whole.choices[0].message.content == "Hello back."
    chunks = list(ask(stack, stream=True, stream_options={"include_usage": True}))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert rebuilt.choices[0].message.content == "Hello back."
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens
    assert rebuilt.usage.prompt_tokens == whole.usage.prompt_tokens


def test_tool_calls_of_a_stream(stack: Stack) -> None:
    stack.script(says(call_block(("get_weather", {"city": "Rome"}))))
    rebuilt = litellm.stream_chunk_builder(list(ask(stack, stream=True, tools=TOOLS)))
    [call] = rebuilt.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments.replace(" ", "")) == ("get_weather", '{"city":"Rome"}')
    assert rebuilt.choices[0].finish_reason == "tool_calls"


def test_reasoning_content(stack: Stack) -> None:
    stack.script(says("Hm.</mm:think>Yes."))
    message = ask(stack, extra_body={"thinking": "enabled"}).choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm.", "Yes.")


def test_num_retries(stack: Stack) -> None:
    stack.script({"status": 503, "headers": {"retry-after": "1"}}, says("fine"))
    assert ask(stack, num_retries=1).choices[0].message.content == "fine"
    assert len(stack.requests()) == 2


def test_context_window_error(stack: Stack) -> None:
    words = [{"role": "user", "content": "word " * CONTEXT_LENGTH}]
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(stack, messages=words)


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"temperature": -1}, litellm.BadRequestError), ({"api_key": "sk-wrong"}, litellm.AuthenticationError)],
)
def test_error_classes(stack: Stack, fields: dict[str, Any], error: type[Exception]) -> None:
    call = {"api_key": stack.key, **fields}
    with pytest.raises(error):
        litellm.completion(
            model=f"openai/{stack.model}", api_base=f"{stack.url}/v1", messages=HELLO, num_retries=0, **call
        )

"""openai (Python) in front of an SGLang server without our route: text works, pictures are refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.conformance.clients.test_openai_media import data_url, part, png
from tests.conformance.stack import Stack, call_block, says

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module", params=["cumulative", "incremental"])
def stock(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with Stack("--stock-only", *(["--incremental"] if request.param == "incremental" else [])) as one:
        yield one


@pytest.fixture
def client(stock: Stack) -> OpenAI:
    stock.script()
    return OpenAI(base_url=f"{stock.url}/v1", api_key=stock.key, max_retries=0)


def test_stream_and_plain_answer_agree(stock: Stack, client: OpenAI) -> None:
    stock.script(says("Grüße, 世界! Once upon a time", cached_tokens=3))
    whole = client.chat.completions.create(model=stock.model, messages=HELLO)
    chunks = list(
        client.chat.completions.create(
            model=stock.model, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert whole.choices[0].message.content == "Grüße, 世界! Once upon a time"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None and whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 3


def test_tools_and_logprobs(stock: Stack, client: OpenAI) -> None:
    stock.script(says(call_block(("get_weather", {"city": "Rome"}))))
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    answer = client.chat.completions.create(
        model=stock.model, messages=HELLO, tools=tools, logprobs=True, top_logprobs=2
    )
    assert [c.function.name for c in answer.choices[0].message.tool_calls or []] == ["get_weather"]
    assert answer.choices[0].logprobs is not None and answer.usage is not None
    assert len(answer.choices[0].logprobs.content or []) == answer.usage.completion_tokens


def test_a_picture_is_refused_with_a_reason(stock: Stack, client: OpenAI) -> None:
    content: Any = [part(data_url(png(40, 40, 1))), {"type": "text", "text": "What is this?"}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=stock.model, messages=[{"role": "user", "content": content}])
    assert caught.value.message
    assert stock.requests() == []


def test_leaving_aborts(stock: Stack, client: OpenAI) -> None:
    stock.script({"pieces": ["again "] * 3000, "delay_ms": 10})
    with client.chat.completions.create(model=stock.model, messages=HELLO, stream=True) as stream:
        next(c for c in stream if c.choices[0].delta.content)
    assert len(stock.aborts()) == 1

"""openai (Python): the Responses API, its event order and sequence numbers."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from tests.conformance.stack import Stack, says


@pytest.fixture
def client(stack: Stack) -> OpenAI:
    one = OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0)
    try:
        one.responses.create(model=stack.model, input="Hello")
    except openai.NotFoundError:
        pytest.skip("the gateway does not serve /v1/responses")
    return one


def test_plain_response(stack: Stack, client: OpenAI) -> None:
    stack.script(says("Hello back."))
    answer = client.responses.create(model=stack.model, input="Hello")
    assert answer.output_text == "Hello back."
    assert answer.status == "completed"


def test_stream_events_are_numbered_and_in_order(stack: Stack, client: OpenAI) -> None:
    stack.script(says("Hello back."))
    events = list(client.responses.create(model=stack.model, input="Hello", stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    order = ["response.output_item.added", "response.content_part.added", "response.output_text.delta",
             "response.output_text.done", "response.content_part.done", "response.output_item.done"]  # fmt: skip
    assert [kinds.index(k) for k in order] == sorted(kinds.index(k) for k in order)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "Hello back."

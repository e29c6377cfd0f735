"""openai (Python): error classes, headers, and what the client retries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.conformance.stack import CONTEXT_LENGTH, KEY, Stack, says

HELLO = [{"role": "user", "content": "Hello"}]


def client_of(stack: Stack, retries: int = 0, key: str | None = None) -> OpenAI:
    return OpenAI(base_url=f"{stack.url}/v1", api_key=key or stack.key, max_retries=retries)


def test_raw_response_has_the_request_id_and_the_time(stack: Stack) -> None:
    raw = client_of(stack).chat.completions.with_raw_response.create(model=stack.model, messages=HELLO)
    assert raw.headers["x-request-id"]
    assert raw.request_id == raw.headers["x-request-id"]
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.parse()._request_id == raw.request_id


@pytest.mark.parametrize("stream", [False, True])
def test_bad_request_names_the_field(stack: Stack, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(stack, retries=2).chat.completions.create(
            model=stack.model, messages=HELLO, temperature=-1, stream=stream
        )
    assert caught.value.param == "temperature"
    assert caught.value.code
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "invalid_request_error"
    assert caught.value.request_id
    assert stack.requests() == []


def test_wrong_key(stack: Stack) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        client_of(stack, key="sk-wrong").chat.completions.create(model=stack.model, messages=HELLO)
    assert caught.value.code == "invalid_api_key"
    assert "sk-wrong" not in str(caught.value)


def test_unknown_model(stack: Stack) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client_of(stack).chat.completions.create(model="gpt-oss", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_prompt_over_the_context_says_both_numbers(stack: Stack) -> None:
    words = "word " * CONTEXT_LENGTH
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(stack).chat.completions.create(model=stack.model, messages=[{"role": "user", "content": words}])
    assert caught.value.code == "context_length_exceeded"
    assert str(CONTEXT_LENGTH) in caught.value.message


@pytest.fixture(scope="module")
def narrow() -> Iterator[Stack]:
    """A gateway with one place and no queue."""
    with Stack(ADMISSION__MAX_IN_FLIGHT="1", ADMISSION__MAX_QUEUE="0") as one:
        yield one


@contextmanager
def place_taken(narrow: Stack, *after: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """The only place is held by a stream until the yielded function is called; `after`: the engine's next answers."""
    narrow.script({"pieces": ["late"], "first_delay_ms": 60_000}, *after)
    stream = client_of(narrow).chat.completions.create(model=narrow.model, messages=HELLO, stream=True)
    narrow.wait_for_request()
    try:
        yield stream.close
    finally:
        stream.close()
        narrow.aborts()


def test_429_is_retried_once_after_the_time_it_names(narrow: Stack) -> None:
    with place_taken(narrow, says("second")) as release:
        http = openai.DefaultHttpxClient(
            event_hooks={"response": [lambda r: release() if r.status_code == 429 else None]}
        )
        with OpenAI(base_url=f"{narrow.url}/v1", api_key=narrow.key, max_retries=1, http_client=http) as client:
            began = time.monotonic()
            answer = client.chat.completions.with_raw_response.create(model=narrow.model, messages=HELLO)
    assert time.monotonic() - began >= 1
    assert answer.retries_taken == 1
    assert answer.parse().choices[0].message.content == "second"


def test_429_body_and_header(narrow: Stack) -> None:
    with place_taken(narrow):
        with pytest.raises(openai.RateLimitError) as caught:
            client_of(narrow).chat.completions.create(model=narrow.model, messages=HELLO)
    assert caught.value.code == "queue_full"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 120


def test_a_wait_that_clients_would_not_wait_is_never_sent(stack: Stack) -> None:
    """openai does not retry at all when Retry-After is above 120 s."""
    stack.script({"status": 503, "headers": {"retry-after": "300"}})
    with pytest.raises(openai.InternalServerError) as caught:
        client_of(stack).chat.completions.create(model=stack.model, messages=HELLO)
    assert caught.value.status_code == 503
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 120


@pytest.mark.parametrize("stream", [False, True])
def test_503_before_the_first_byte_is_retried(stack: Stack, stream: bool) -> None:
    stack.script({"status": 503, "headers": {"retry-after": "1"}}, says("fine"))
    answer = client_of(stack, retries=1).chat.completions.create(model=stack.model, messages=HELLO, stream=stream)
    text = (
        "".join(c.choices[0].delta.content or "" for c in answer if c.choices)
        if stream
        else answer.choices[0].message.content
    )
    assert text == "fine"
    assert len(stack.requests()) == 2


@pytest.mark.parametrize("fault", ["error", "eof", "garbage", "reset"])
def test_a_failure_in_mid_stream_is_an_error_and_is_not_retried(stack: Stack, fault: str) -> None:
    stack.script({"pieces": ["one", " two", " three"], "fail_after": 2, "fault": fault})
    stream = client_of(stack, retries=2).chat.completions.create(model=stack.model, messages=HELLO, stream=True)
    seen: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        seen.extend(c.choices[0].delta.content or c.choices[0].finish_reason or "" for c in stream)
    if fault == "reset":  # what was not yet read is lost with the connection
        assert "one two".startswith("".join(seen))
    else:
        assert "".join(seen) == "one two"
    assert caught.value.message
    assert len(stack.requests()) == 1


@pytest.fixture(scope="module")
def metered() -> Iterator[Stack]:
    """A gateway whose only tenant may send three requests a minute."""
    tenant = {"name": "acme", "api_keys": [KEY], "requests_per_minute": 3, "tokens_per_minute": 3000}
    with Stack(ADMISSION__API_KEYS="[]", ADMISSION__TENANTS=json.dumps([tenant])) as one:
        yield one


def test_rate_limit_headers_count_down_to_a_429(metered: Stack) -> None:
    metered.script(says("fine"))
    create = client_of(metered).chat.completions.with_raw_response.create
    hello = [{"role": "user", "content": "word " * 100}]  # more than comes back between two calls on a slow machine
    seen = [create(model=metered.model, messages=hello).headers for _ in range(3)]
    assert [h["x-ratelimit-limit-requests"] for h in seen] == ["3"] * 3
    assert [int(h["x-ratelimit-remaining-requests"]) for h in seen] == [2, 1, 0]
    assert int(seen[0]["x-ratelimit-remaining-tokens"]) > int(seen[2]["x-ratelimit-remaining-tokens"])
    with pytest.raises(openai.RateLimitError) as caught:
        create(model=metered.model, messages=HELLO)
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "0"

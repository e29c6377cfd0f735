"""pydantic's locations become the client's own paths; halves of characters become whole ones."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.body import parse, path_of, spell, whole_characters
from gateway.api.chat.protocol import ChatRequest
from gateway.api.completions.protocol import CompletionRequest
from gateway.errors import ApiError


def test_union_tags_vanish_from_paths() -> None:
    data = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}]}
    loc = ("messages", 0, "user", "content", "list[Part]", 0, "image_url", "image_url", "ImageUrl", "url")
    assert spell(path_of(loc, data, missing=False)) == "messages[0].content[0].image_url.url"


def test_a_missing_last_name_is_kept() -> None:
    data = {"messages": [{"role": "user", "content": [{"type": "text"}]}]}
    loc = ("messages", 0, "user", "content", "list", 0, "text", "text")
    assert spell(path_of(loc, data, missing=True)) == "messages[0].content[0].text"


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER]}, "model"),
        ({"model": "m", "messages": [{"content": "x"}]}, "messages[0]"),
        ({"model": "m", "messages": [USER, {"role": "tool", "content": [{"type": "text", "text": 1}]}]},
         "messages[1].content[0].text"),
        ({"model": "m", "messages": [USER], "stop": [""]}, "stop[0]"),
        ({"model": "m", "messages": [USER], "stop": 5}, "stop"),
        ({"model": "m", "messages": [USER], "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"model": "m", "messages": [USER], "tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"model": "m", "messages": [USER], "tool_choice": "always"}, "tool_choice"),
        ({"model": "m", "messages": [USER], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"model": "m", "messages": [USER], "seed": 2**63}, "seed"),
        ({"model": "m", "messages": [USER], "stream": "yes"}, "stream"),
        ({"model": "m", "messages": [USER], "max_tokens": 1.5}, "max_tokens"),
        ({"model": "m", "messages": [USER], "n": True}, "n"),
    ],
)  # fmt: skip
def test_the_deepest_error_is_told(body: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatRequest, orjson.dumps(body))
    assert caught.value.param == param, caught.value.message
    assert caught.value.status == 400
    assert param in caught.value.message


def test_messages_never_repeat_long_input() -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatRequest, orjson.dumps({"model": "m", "messages": "A" * 100_000}))
    assert len(caught.value.message) < 300


FORMATS = "'text', 'json_object', 'json_schema'"


@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        (ChatRequest, {"thinking": "x"}, "'thinking': input should be 'enabled', 'disabled' or 'adaptive', got \"x\""),
        (ChatRequest, {"response_format": {}}, f"'response_format': 'type' is missing; it must be one of {FORMATS}"),
        (ChatRequest, {"response_format": {"type": "yaml"}},
         f"'response_format': 'type' is 'yaml'; it must be one of {FORMATS}"),
        (ChatRequest, {"messages": [{"content": "x"}]}, "'messages[0]': 'role' is missing; it must be one of 'system', "
         "'developer', 'root', 'user', 'assistant', 'tool'"),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}]}]}, "'messages[0].content[0]': 'type' is missing; it "
         "must be one of 'text', 'image_url', 'video_url', 'image_file', 'video_file'"),
        (CompletionRequest, {"prompt": ["a"] * 129}, "'prompt': at most 128 entries are allowed, got 129"),
        (CompletionRequest, {"prompt": [[1]] * 129}, "'prompt': at most 128 entries are allowed, got 129"),
        (ChatRequest, {"stop": ["a"] * 17}, "'stop': at most 16 entries are allowed, got 17"),
    ],
)  # fmt: skip
def test_what_is_allowed_is_told(model: Any, fields: dict[str, Any], said: str) -> None:
    base = {"model": "m", "messages": [USER]} if model is ChatRequest else {"model": "m"}
    with pytest.raises(ApiError) as caught:
        parse(model, orjson.dumps({**base, **fields}))
    assert caught.value.message == said


HALVES = st.text(st.one_of(st.characters(), st.sampled_from('\ud800\udbff\udc00\udfff\\u"d8')), max_size=20)


@given(HALVES, HALVES)
def test_halves_of_surrogate_pairs_become_whole_characters(key: str, value: str) -> None:
    body = json.dumps({key: value}).encode("ascii")
    read = orjson.loads(whole_characters(body))

    def meant(text: str) -> str:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    assert read == {meant(key): meant(value)}
    if not any("\ud800" <= c <= "\udfff" for c in key + value):
        assert whole_characters(body) == body

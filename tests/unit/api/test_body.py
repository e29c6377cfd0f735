"""pydantic's locations become the client's own paths."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.api.body import parse, path_of, spell
from gateway.api.chat.protocol import ChatRequest
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

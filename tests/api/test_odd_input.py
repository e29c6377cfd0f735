"""Input that is legal but odd, or nearly legal: served as meant, or refused by name; never a 500."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.harness import CHAT, MODEL, Stack
from tests.api.m3 import SUM, calls, invoke, tool

PREFIX = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],'
COMPLETIONS = "/v1/completions"
TURN = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("escaped", "meant"),
    [(r"cut \ud83d", "cut �"), (r"\ude00 cut", "� cut"), (r"\ud83d\ude00 whole", "😀 whole"), (r"\\ud83d text", r"\ud83d text")],
)  # fmt: skip
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
async def test_half_a_surrogate_pair_is_a_replacement_character(
    stack: Stack, escaped: str, meant: str, large: bool
) -> None:
    """Symptom: an agent that cut a tool's output inside an emoji could never go on, since its history came again."""
    pad = "a" * (300 << 10 if large else 1)
    body = f'{{"model":"tiny","x":"{pad}","messages":[{{"role":"user","content":"{escaped}"}}]}}'.encode("ascii")
    assert (await stack.post(CHAT, body)).status == 200
    assert meant in stack.sent["text"]
    body = f'{{"model":"tiny","messages":[{{"role":"user","content":"{escaped}"}}]}}'.encode("ascii")
    assert (await stack.post("/tokenize", body)).status == 200
    assert (await stack.post(COMPLETIONS, f'{{"model":"tiny","prompt":"{escaped}"}}'.encode("ascii"))).status == 200
    assert stack.sent["text"] == meant


async def test_nul_and_the_like_are_text(stack: Stack) -> None:
    text = "a\0b\x7f\u2028\ufeff\U0010ffff"
    assert (await stack.chat(text)).status == 200
    assert text in stack.sent["text"]


NO_JSON: list[bytes] = [
    PREFIX + b'"temperature":NaN}', PREFIX + b'"temperature":Infinity}', PREFIX + b'"metadata":{"a":NaN}}',
    PREFIX + b'"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":-Infinity}}}]}',
    PREFIX + b'"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"const":NaN}}}}',
    PREFIX + b'"x":1e999,"y":NaN}', PREFIX + b'"x":1} y', b"\xef\xbb\xbf" + PREFIX + b'"x":1}',
    PREFIX + b'"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"model":"tiny","messages":"a\xffb"}',
    b'{"model":"tiny","messages":"a\x01b"}',
]  # fmt: skip


@pytest.mark.parametrize("body", NO_JSON, ids=range(len(NO_JSON)))
async def test_what_is_no_json_is_refused_as_such(stack: Stack, body: bytes) -> None:
    answer = await stack.post(CHAT, body)
    assert (answer.status, answer.error["code"]) == (400, "invalid_json"), answer.raw
    assert len(answer.error["message"]) < 300


async def test_nan_in_a_text_is_a_text(stack: Stack) -> None:
    assert (await stack.chat("Is NaN below Infinity?")).status == 200
    assert "Is NaN below Infinity?" in stack.sent["text"]


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def schema(value: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value, **more}}}


ODD: list[tuple[str, dict[str, Any], str, str]] = [
    ("top_k", {"top_k": 2**31}, "top_k", "invalid_value"),
    ("min_tokens", {"min_tokens": 10**30}, "min_tokens", "invalid_value"),
    ("stop length", {"stop": "x" * 1025}, "stop", "string_above_max_length"),
    ("stop null", {"stop": [None]}, "stop[0]", "invalid_value"),
    ("bias space", {"logit_bias": {" 5": 1}}, "logit_bias", "invalid_value"),
    ("bias sign", {"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ("bias digits", {"logit_bias": {"٣": 1}}, "logit_bias", "invalid_value"),
    ("bias many digits", {"logit_bias": {"9" * 5000: 1}}, "logit_bias", "invalid_value"),
    ("bias count", {"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "invalid_value"),
    ("bias list", {"logit_bias": [[1, 2]]}, "logit_bias", "invalid_value"),
    ("service tier", {"service_tier": "gold"}, "service_tier", "invalid_value"),
    ("same tool", {"tools": [function("a"), function("a")]}, "tools[1].function.name", "invalid_value"),
    ("tool count", {"tools": [function(f"t{i}") for i in range(1025)]}, "tools", "invalid_value"),
    ("custom tool", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "invalid_value"),
    ("parameters", {"tools": [function("a", parameters=[])]}, "tools[0].function.parameters", "invalid_value"),
    ("deep kwargs", {"chat_template_kwargs": {"a": json.loads("[" * 150 + "]" * 150)}}, "chat_template_kwargs.a",
     "invalid_messages"),
    ("audio part", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]",
     "invalid_value"),
    ("nothing to continue", {"continue_final_message": True}, "messages[0].role", "invalid_messages"),
    ("JSON begun elsewhere", {"continue_final_message": True, "response_format": {"type": "json_object"},
     "messages": [*TURN, {"role": "assistant", "content": "{"}]}, "continue_final_message", "invalid_value"),
    ("anchor", schema({"$ref": "#there", "$defs": {"a": {"$anchor": "there"}}}),
     "response_format.json_schema.schema", "invalid_schema"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "code"), [o[1:] for o in ODD], ids=[o[0] for o in ODD])
async def test_odd_fields_are_refused_by_name(stack: Stack, fields: dict[str, Any], param: str, code: str) -> None:
    answer = await stack.chat("Hi", **fields)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code), answer.raw
    assert len(answer.error["message"]) < 300
    assert not stack.engine.requests()


NOT_HELD: list[tuple[str, dict[str, Any]]] = [
    ("not", {"not": {"type": "string"}}),
    ("if", {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}),
    ("uniqueItems", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}),
    ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    ("pattern", {"type": "object", "additionalProperties": {"type": "string", "pattern": "^(?!a)b"}}),
    ("allOf", {"type": "array", "items": {"allOf": [{"type": "object"}, {"required": ["a"]}]}}),
]


@pytest.mark.parametrize(("word", "value"), NOT_HELD, ids=[n[0] for n in NOT_HELD])
async def test_a_strict_schema_is_held_or_refused(stack: Stack, word: str, value: dict[str, Any]) -> None:
    for streamed in (False, True):
        answer = await stack.chat("Hi", stream=streamed, **schema(value, strict=True))
        assert (answer.status, answer.error["code"]) == (400, "invalid_schema"), answer.raw
        assert f"'{word}'" in answer.error["message"]
    assert (await stack.chat("Hi", **schema(value))).status == 200  # without strict: the rest of it is held


async def test_names_and_values_are_no_keywords(stack: Stack) -> None:
    names = {w: {"type": "string", "const": {"not": 1, "$ref": "http://x"}} for w in ("not", "if", "$ref", "allOf")}
    value = {"type": "object", "properties": names, "enum": [{"not": {}}], "default": {"$ref": "http://x.example"}}
    assert (await stack.chat("Hi", **schema({**value, "uniqueItems": False}, strict=True))).status == 200


async def test_recursive_schemas_are_served(stack: Stack) -> None:
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["next"],
    }
    answer = await stack.chat("Hi", **schema({"$ref": "#/$defs/node", "$defs": {"node": node}}, strict=True))
    assert answer.status == 200, answer.raw
    assert "#/$defs/node" in stack.sent["grammar"]["value"]


async def test_many_tools(stack: Stack) -> None:
    tools = [tool(f"tool_{i}", a="string") for i in range(200)]
    stack.engine.script([{"pieces": [calls(invoke("tool_199", a="x"))]}])
    answer = await stack.chat("Hi", tools=tools, tool_choice="required")
    [call] = answer.message["tool_calls"]
    assert call["function"]["name"] == "tool_199"
    assert "tool_199" in stack.sent["grammar"]["value"]


async def test_deep_arguments_of_a_past_call_are_rendered(stack: Stack) -> None:
    for arguments in ("[" * 3000 + "]" * 3000, '{"a":' * 500 + "1" + "}" * 500):
        messages = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "sum", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
        ]
        answer = await stack.chat(messages=messages, tools=[SUM])
        assert answer.status == 200, answer.raw


async def test_max_tokens_of_any_size_is_clipped(stack: Stack) -> None:
    assert (await stack.chat("Hi", max_tokens=10**30)).status == 200
    assert stack.sent["sampling"]["max_new_tokens"] == 131072 - len(stack.sent["ids"])


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"service_tier": "gold"}, {"prompt": []}, {"prompt": [True]}])
async def test_odd_completions(stack: Stack, fields: dict[str, Any]) -> None:
    answer = await stack.post(COMPLETIONS, {"model": MODEL, "prompt": "x", **fields})
    assert answer.status == 400, answer.raw
    assert answer.error["param"].startswith(next(iter(fields)))


@pytest.mark.parametrize(("path", "field"), [(CHAT, "messages"), (CHAT, "model"), (COMPLETIONS, "prompt")])
async def test_null_is_absent_also_where_a_value_is_needed(stack: Stack, path: str, field: str) -> None:
    answer = await stack.post(path, {"model": MODEL, "messages": TURN, "prompt": "x", field: None})
    assert (answer.status, answer.error["param"]) == (400, field)
    assert answer.error["code"] == "missing_required_parameter"

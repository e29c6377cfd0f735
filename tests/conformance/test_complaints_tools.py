"""Public complaints about tool calls, each as the promise that answers it. Numbers are those of the design page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.harness import Stack
from tests.api.m3 import SUM, TEMP_NOW, TEMP_ON_DATE, TWO_CALLS, calls, invoke, tool

ROME = "Temp in Rome now and tomorrow?"
TOOLS = [TEMP_NOW, TEMP_ON_DATE]


def letters(text: str) -> list[str]:
    """One piece per character: the worst case for an incremental parser."""
    return list(text)


async def test_01_every_streamed_call_begins_with_its_own_id_type_and_name(stack: Stack) -> None:
    stack.engine.script([{"pieces": letters(TWO_CALLS)}])
    events = await stack.stream(ROME, tools=TOOLS)
    pieces = [p for d in events.deltas() for p in d.get("tool_calls", [])]
    firsts = {p["index"]: p for p in reversed(pieces)}
    assert sorted(firsts) == [0, 1]
    assert all(p["id"] and p["type"] == "function" and p["function"]["name"] for p in firsts.values())
    assert firsts[0]["id"] != firsts[1]["id"]
    for piece in pieces:
        if piece is not firsts[piece["index"]]:
            assert "id" not in piece and "type" not in piece and "name" not in piece["function"]


async def test_02_index_counts_calls_in_the_answer_not_tools_in_the_request(stack: Stack) -> None:
    stack.engine.script([{"pieces": letters(TWO_CALLS)}])
    events = await stack.stream(ROME, tools=TOOLS)
    assert [c["name"] for c in events.calls()] == ["temp_on_date", "temp_now"]
    indexes = [p["index"] for d in events.deltas() for p in d.get("tool_calls", [])]
    assert indexes == sorted(indexes)
    assert set(indexes) == {0, 1}


async def test_03_every_tool_delta_has_an_integer_index(stack: Stack) -> None:
    stack.engine.script([{"pieces": letters(calls(invoke("temp_now", city="Rome")))}])
    events = await stack.stream(ROME, tools=[TEMP_NOW])
    pieces = [p for d in events.deltas() for p in d.get("tool_calls", [])]
    assert pieces
    assert all(type(p["index"]) is int for p in pieces)


@pytest.mark.parametrize("cut", ["whole", "letters"])
async def test_04_streamed_arguments_equal_the_plain_ones_and_are_json(stack: Stack, cut: str) -> None:
    text = calls(invoke("sum", a="2", b="2"))
    stack.engine.script([{"pieces": [text] if cut == "whole" else letters(text)}])
    events = await stack.stream("2 plus 2", tools=[SUM], tool_choice="auto")
    [streamed] = events.calls()
    plain = (await stack.chat("2 plus 2", tools=[SUM], tool_choice="auto")).message["tool_calls"][0]
    assert streamed["arguments"] == plain["function"]["arguments"]
    assert json.loads(streamed["arguments"]) == {"a": 2, "b": 2}


async def test_05_the_tail_of_long_arguments_is_not_lost(stack: Stack) -> None:
    long = "".join(f'line {i}: "quoted" \\ {{x}} <b>é猫</b>\n' for i in range(200))
    text = calls(invoke("write", path="a.txt", body=long))
    write = tool("write", path="string", body="string")
    stack.engine.script([{"pieces": [text[i : i + 7] for i in range(0, len(text), 7)]}])
    events = await stack.stream("Write it", tools=[write])
    assert json.loads(events.calls()[0]["arguments"]) == {"path": "a.txt", "body": long}
    plain = (await stack.chat("Write it", tools=[write])).message["tool_calls"][0]["function"]["arguments"]
    assert events.calls()[0]["arguments"] == plain


def history(content: Any = None, *, absent: bool = False) -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "sum", "arguments": '{"a": 2, "b": 2}'}}
    assistant = {"role": "assistant", "content": content, "tool_calls": [call]}
    if absent:
        del assistant["content"]
    return [
        {"role": "user", "content": "2 plus 2"},
        assistant,
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    ]


async def test_06_no_calls_means_no_tool_calls_key(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["It is ", "4."]}])
    answer = await stack.chat(messages=history(), tools=[SUM])
    assert "tool_calls" not in answer.message
    assert answer.message["content"] == "It is 4."
    events = await stack.stream(messages=history(), tools=[SUM])
    assert all("tool_calls" not in d for d in events.deltas())
    assert events.finishes()[-1] == "stop"


@pytest.mark.parametrize(
    ("choice", "finish"),
    [("required", "tool_calls"), ("auto", "tool_calls"), ({"type": "function", "function": {"name": "sum"}}, "stop")],
    ids=["required", "auto", "named"],
)
async def test_07_finish_reason_of_forced_calls_is_the_same_streamed_or_not(
    stack: Stack, choice: Any, finish: str
) -> None:
    stack.engine.script([{"pieces": letters(calls(invoke("sum", a="2", b="2")))}])
    answer = await stack.chat("2 plus 2", tools=[SUM], tool_choice=choice)
    events = await stack.stream("2 plus 2", tools=[SUM], tool_choice=choice)
    assert answer.message["tool_calls"]
    assert answer.message["content"] is None
    assert answer.json["choices"][0]["finish_reason"] == events.finishes()[-1] == finish


async def test_07_never_tool_calls_without_a_call(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["no call"]}])
    answer = await stack.chat("2 plus 2", tools=[SUM], tool_choice="required")
    events = await stack.stream("2 plus 2", tools=[SUM], tool_choice="required")
    assert answer.json["choices"][0]["finish_reason"] == events.finishes()[-1] == "stop"


async def test_07_named_choice_can_be_configured_to_finish_with_tool_calls() -> None:
    async with Stack(
        [{"pieces": [calls(invoke("sum", a="2", b="2"))]}], api={"named_tool_finish_reason": "tool_calls"}
    ) as s:
        choice = {"type": "function", "function": {"name": "sum"}}
        answer = await s.chat("2 plus 2", tools=[SUM], tool_choice=choice)
        assert answer.json["choices"][0]["finish_reason"] == "tool_calls"


async def test_08_an_empty_tools_list_is_none_unless_configured(stack: Stack) -> None:
    assert (await stack.chat("Hi", tools=[])).status == 200
    assert "<tools>" not in stack.sent["text"]
    async with Stack(api={"empty_tools": "refuse"}) as s:
        refused = await s.chat("Hi", tools=[])
        assert (refused.status, refused.error["param"]) == (400, "tools")


async def test_09_first_chunk_of_each_choice_has_the_role_and_no_later_one(stack: Stack) -> None:
    stack.engine.script([{"pieces": letters(TWO_CALLS)}])
    events = await stack.stream(ROME, tools=TOOLS, n=2)
    for index in (0, 1):
        first, *rest = events.deltas(index)
        assert first["role"] == "assistant"
        assert all("role" not in d for d in rest)


@pytest.mark.parametrize("form", ["null", "empty", "absent"])
async def test_28_past_calls_with_null_empty_or_absent_content_are_the_same(stack: Stack, form: str) -> None:
    reference = history("")
    messages = {"null": history(None), "empty": reference, "absent": history(absent=True)}[form]
    assert (await stack.chat(messages=reference)).status == 200
    expected = stack.sent["ids"]
    answer = await stack.chat(messages=messages)
    assert answer.status == 200, answer.raw
    assert stack.sent["ids"] == expected


async def test_28_our_own_calls_come_with_null_content(stack: Stack) -> None:
    stack.engine.script([{"pieces": [TWO_CALLS]}])
    answer = await stack.chat(ROME, tools=TOOLS)
    assert answer.message["content"] is None
    assert len(answer.message["tool_calls"]) == 2


async def test_at_most_one_call_without_parallel_tool_calls(stack: Stack) -> None:
    stack.engine.script([{"pieces": letters(TWO_CALLS)}])
    fields: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False}
    events = await stack.stream(ROME, **fields)
    plain = await stack.chat(ROME, **fields)
    assert [c["name"] for c in events.calls()] == ["temp_on_date"]
    assert [c["function"]["name"] for c in plain.message["tool_calls"]] == ["temp_on_date"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "temp_now"}}, "auto"])
async def test_forced_calls_are_held_by_a_grammar(stack: Stack, choice: Any) -> None:
    stack.engine.script([{"pieces": [TWO_CALLS]}])
    await stack.chat(ROME, tools=TOOLS, tool_choice=choice, thinking="enabled")
    grammar = stack.sent["grammar"]
    if choice == "auto":
        assert grammar is None
        return
    assert grammar["type"] == "structural_tag"
    assert grammar["after_ids"]
    assert ("temp_on_date" in grammar["value"]) == (choice == "required")


async def test_tool_choice_none_hides_the_tools(stack: Stack) -> None:
    await stack.chat("Hi", tools=[SUM], tool_choice="none")
    assert "<tools>" not in stack.sent["text"]
    await stack.chat("Hi", tools=[SUM])
    assert "<tools>" in stack.sent["text"]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_allowed_tools_are_the_only_ones_offered(stack: Stack, mode: str) -> None:
    only = [{"type": "function", "function": {"name": "temp_now"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": only}}
    stack.engine.script([{"pieces": [calls(invoke("temp_now", city="Rome"))]}])
    answer = await stack.chat(ROME, tools=TOOLS, tool_choice=choice)
    assert answer.json["choices"][0]["finish_reason"] == "tool_calls"
    assert "temp_now" in stack.sent["text"] and "temp_on_date" not in stack.sent["text"]
    assert (stack.sent["grammar"] is not None) == (mode == "required")
    only[0]["function"]["name"] = "other"  # type: ignore[index]
    refused = await stack.chat(ROME, tools=TOOLS, tool_choice=choice)
    assert refused.error["param"] == "tool_choice.allowed_tools.tools[0].function.name"


@pytest.mark.parametrize("arguments", ["{not json", "", "[1]", None, '{"a":', {"a": 1}])
async def test_broken_past_arguments_never_break_a_conversation(stack: Stack, arguments: Any) -> None:
    messages = history()
    messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
    answer = await stack.chat(messages=messages, tools=[SUM])
    assert answer.status == 200, answer.raw

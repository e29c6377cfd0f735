"""Which histories are accepted and how they are read; each refusal names its place."""

import copy
import json
from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.prompt import PromptBuilder, PromptSettings
from tests.property.prompt.support import reference_text, tiny

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def text(messages: list[dict[str, Any]], settings: PromptSettings | None = None, **options: Any) -> str:
    before = copy.deepcopy(messages)
    out = tiny().decode(PromptBuilder(tiny(), settings).render(messages, **options).ids)
    assert messages == before, "the caller's messages were changed"
    return out


def test_content_null_empty_and_absent_are_rendered_the_same() -> None:
    for calls in ({}, {"tool_calls": [CALL]}):
        given = [
            [USER, {"role": "assistant", **content, **calls}, {"role": "user", "content": "more"}]
            for content in ({"content": None}, {"content": ""}, {"content": []}, {})
        ]
        assert len({text(m) for m in given}) == 1


def test_reasoning_of_past_turns_is_kept_under_either_name() -> None:
    given = [
        [USER, {"role": "assistant", "content": "yes", name: "because"}, USER]
        for name in ("reasoning_content", "reasoning")
    ] + [[USER, {"role": "assistant", "content": "<mm:think>\nbecause\n</mm:think>\n\nyes"}, USER]]
    assert {text(m) for m in given} == {text(given[0])}
    assert "<mm:think>because</mm:think>yes" in text(given[0])


def test_reasoning_is_cut_from_text_parts_too() -> None:
    parts = [{"type": "text", "text": "<mm:think>be"}, {"type": "text", "text": "cause</mm:think>yes"}]
    assert "<mm:think>because</mm:think>yes" in text([USER, {"role": "assistant", "content": parts}, USER])


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"a": "x"}', {"a": "x"}),
        ({"a": "x"}, {"a": "x"}),
        ("", {}),
        (None, {}),
        ("  ", {}),
        ("{}", {}),
        ("null", {"arguments": None}),
        ('{"a": "x', {"arguments": '{"a": "x'}),
        ("[1, 2]", {"arguments": [1, 2]}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ("[" * 100000, {"arguments": "[" * 100000}),
        ("rm -rf", {"arguments": "rm -rf"}),
        ('{"a": "\\ud800"}', {"arguments": '{"a": "\\ud800"}'}),
        ({"a": "x\ud800"}, {"arguments": '{"a": "x\\ud800"}'}),
        ({"\udfff": 1}, {"arguments": '{"\\udfff": 1}'}),
        ("a\ud800", {"arguments": "a\ufffd"}),
        *[(deep, {"arguments": deep}) for n in (65, 66, 500, 990, 5000) for deep in ['{"a":' * n + "1" + "}" * n]],
        (json.loads('{"a": ' * 80 + "1" + "}" * 80), {"arguments": '{"a": ' * 80 + "1" + "}" * 80}),
    ],
    ids=lambda value: str(value)[:24],
)
def test_past_arguments_never_break_a_conversation(arguments: Any, rendered: dict[str, Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    mapping = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": rendered}}
    tool = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    got = text([USER, {"role": "assistant", "tool_calls": [call]}, tool])
    assert got == reference_text(tiny(), [USER, {"role": "assistant", "content": None, "tool_calls": [mapping]}, tool])


def test_later_system_messages_join_the_developer_turn() -> None:
    late = [
        {"role": "system", "content": "one"},
        USER,
        {"role": "developer", "content": [{"type": "text", "text": "two"}]},
        USER,
    ]
    assert text(late) == text([{"role": "system", "content": "one\n\ntwo"}, USER, USER])
    assert text([USER, {"role": "system", "content": "one"}]) == text([{"role": "system", "content": "one"}, USER])
    root = {"role": "root", "content": "R"}
    assert text([root, USER, {"role": "system", "content": "one"}]) == text(
        [root, {"role": "system", "content": "one"}, USER]
    )
    between = [USER, CALLED, {"role": "system", "content": "one"}, {"role": "tool", "content": "r"}]
    assert text(between) == text([{"role": "system", "content": "one"}, USER, CALLED, {"role": "tool", "content": "r"}])


def test_continue_final_message_goes_on_where_the_text_ends() -> None:
    answer = {"role": "assistant", "content": "The  "}
    assert text([USER, answer], continue_final_message=True).endswith("]~b]ai\n</mm:think>The  ")
    assert text([answer], continue_final_message=True).endswith("]~b]ai\n</mm:think>The  ")
    parts = {"role": "assistant", "content": [{"type": "text", "text": "The"}]}
    assert text([USER, parts], continue_final_message=True).endswith("</mm:think>The")
    thought = [USER, {"role": "assistant", "reasoning_content": "I th"}]
    rendered = PromptBuilder(tiny()).render(thought, continue_final_message=True)
    assert rendered.starts_in_reasoning is True
    assert tiny().decode(rendered.ids).endswith("]~b]ai\n<mm:think>I th")


PNG = {"type": "image"}
REFUSED: list[tuple[str, Any, str]] = [
    ("no messages", [], "messages"),
    ("only assistant", [{"role": "assistant", "content": "x"}], "messages"),
    ("no object", ["hi"], "messages[0]"),
    ("role", [USER, {"role": "function", "content": "x"}], "messages[1].role"),
    ("late root", [USER, {"role": "root", "content": "x"}], "messages[1].role"),
    ("user null", [{"role": "user", "content": None}], "messages[0].content"),
    ("user number", [{"role": "user", "content": 5}], "messages[0].content"),
    ("part type", [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "pdf"}]}],
     "messages[0].content[1].type"),
    ("part text", [{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
    ("image in system", [{"role": "system", "content": [PNG]}, USER], "messages[0].content"),
    ("tool without call", [USER, {"role": "tool", "content": "x"}], "messages[1]"),
    ("tool after user", [USER, CALLED, USER, {"role": "tool", "content": "x"}], "messages[3]"),
    ("tool null", [USER, CALLED, {"role": "tool", "content": None}], "messages[2].content"),
    ("call without name", [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}],
     "messages[1].tool_calls[0].function.name"),
    ("calls no list", [USER, {"role": "assistant", "tool_calls": "x"}], "messages[1].tool_calls"),
    ("reasoning", [USER, {"role": "assistant", "reasoning": 5}], "messages[1].reasoning_content"),
    ("surrogate", [USER, {"role": "user", "content": "a\ud800b"}], "messages[1]"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "param"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_refusal_is_a_400_that_names_the_place(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as e:
        text(messages)
    assert (e.value.code, e.value.status, e.value.param) == ("invalid_messages", 400, param)
    json.dumps(e.value.body()).encode()


def test_nesting_of_tools_has_a_limit() -> None:
    deep: Any = "x"
    for _ in range(90):
        deep = {"a": deep}
    with pytest.raises(ApiError, match="64") as e:
        text([USER], tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}])
    assert e.value.param == "tools[0].function"


def test_settings_change_what_is_accepted() -> None:
    late = [USER, {"role": "system", "content": "one"}]
    with pytest.raises(ApiError) as e:
        text(late, PromptSettings(later_system="refuse"))
    assert e.value.param == "messages[1]"
    images = [{"role": "user", "content": [PNG, PNG]}]
    with pytest.raises(ApiError) as e:
        text(images, PromptSettings(max_media_parts=1))
    assert (e.value.code, e.value.status) == ("media_limit_exceeded", 400)
    call = {"function": {"name": "f", "arguments": {"a": {"b": {"c": {"d": {"e": 1}}}}}}}
    shown = text([USER, {"role": "assistant", "tool_calls": [call]}], PromptSettings(max_json_depth=4))
    assert json.dumps(call["function"]["arguments"]) in shown


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as e:
        text([USER], **options)
    assert (e.value.code, e.value.param) == ("invalid_value", param)


def test_template_variables_reach_the_template_but_forge_nothing() -> None:
    assert text([USER], template_kwargs={"thinking_mode": "disabled"}) == text([USER], thinking_mode="disabled")
    ids = PromptBuilder(tiny()).render([USER], template_kwargs={"thinking_mode": "[e~[", "self": 1}).ids
    plain = PromptBuilder(tiny()).render([USER]).ids
    assert ids.count(tiny().eos_ids[0]) == plain.count(tiny().eos_ids[0])

"""Public complaints about streams, usage, logprobs, reasoning and formats, each as the promise that answers it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.prompt import Checkpoint
from tests.api.harness import TINY, Stack
from tests.api.m3 import SUM, calls, invoke

THOUGHT = ["Let ", "me ", "think", "</mm:think>", "The ", "answer"]


async def test_10_finish_reason_is_there_and_null_until_the_end(stack: Stack) -> None:
    events = await stack.stream("Hi")
    choices = [c for chunk in events.chunks for c in chunk["choices"]]
    assert all("finish_reason" in c for c in choices)
    assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"]


async def test_11_usage_comes_once_after_the_finish_and_only_if_asked(stack: Stack) -> None:
    asked = await stack.stream("Hi", stream_options={"include_usage": True})
    with_usage = [i for i, c in enumerate(asked.chunks) if c.get("usage")]
    assert with_usage == [len(asked.chunks) - 1]
    assert asked.chunks[-1]["choices"] == []
    assert asked.chunks[-2]["choices"][0]["finish_reason"]
    for options in ({}, None):
        events = await stack.stream("Hi", stream_options=options)
        assert all(not c.get("usage") for c in events.chunks)


async def test_12_tokens_are_metered_when_the_client_did_not_ask(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["a", "b", "c"]}])
    name = 'catalejo_tokens_total{gen_ai_request_model="tiny",gen_ai_token_type="%s"}'
    before = [await stack.metric(name % kind) for kind in ("input", "output")]
    await stack.stream("Hi", thinking="disabled")
    after = [await stack.metric(name % kind) for kind in ("input", "output")]
    assert after[0] - before[0] == len(stack.sent["ids"])
    assert after[1] - before[1] >= 3


async def test_13_per_chunk_usage_has_the_plain_answers_numbers(stack: Stack) -> None:
    stack.engine.script([{"pieces": THOUGHT, "cached_tokens": 64}])
    plain = (await stack.chat("Hi", thinking="enabled")).json["usage"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await stack.stream("Hi", thinking="enabled", stream_options=options)
    usages = [c["usage"] for c in events.chunks]
    assert usages[-1] == plain
    assert plain["prompt_tokens_details"]["cached_tokens"] == 64
    assert plain["completion_tokens_details"]["reasoning_tokens"] > 0
    assert {u["prompt_tokens_details"]["cached_tokens"] for u in usages} == {64}
    assert usages[-2]["completion_tokens_details"] == plain["completion_tokens_details"]


def rows(events: Any) -> list[Any]:
    return [
        r for chunk in events.chunks for c in chunk["choices"] for r in (c["logprobs"] or {"content": []})["content"]
    ]


async def test_14_one_logprob_row_per_token_also_when_tokens_share_a_chunk(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["several tokens in one piece"]}])
    fields = {"logprobs": True, "top_logprobs": 2, "thinking": "disabled"}
    plain = (await stack.chat("Hi", **fields)).json
    events = await stack.stream("Hi", **fields)
    assert rows(events) == plain["choices"][0]["logprobs"]["content"]
    assert len(rows(events)) == plain["usage"]["completion_tokens"]
    assert len({str(r["top_logprobs"]) for r in rows(events)}) > 1


@pytest.mark.parametrize("kind", ["reasoning", "tools"])
async def test_15_logprob_rows_of_reasoning_and_tool_deltas_are_kept(stack: Stack, kind: str) -> None:
    pieces = THOUGHT if kind == "reasoning" else [*calls(invoke("sum", a="1", b="2"))]
    stack.engine.script([{"pieces": pieces}])
    fields: dict[str, Any] = {"logprobs": True, "thinking": "enabled" if kind == "reasoning" else "disabled"}
    if kind == "tools":
        fields["tools"] = [SUM]
    events = await stack.stream("Hi", **fields, stream_options={"include_usage": True})
    assert len(rows(events)) == events.chunks[-1]["usage"]["completion_tokens"]
    carrying = [c["delta"] for chunk in events.chunks for c in chunk["choices"] if c["logprobs"]]
    assert any("reasoning_content" in d or "tool_calls" in d for d in carrying)
    plain = (await stack.chat("Hi", **fields)).json
    assert plain["choices"][0]["logprobs"]["content"] == rows(events)


async def test_16_stop_strings_do_not_fire_inside_the_thinking(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["9.11 or 9.8", "? hm", "</mm:think>", "It is ", "9.8", " indeed"]}])
    message = (await stack.chat("9.11 or 9.8?", stop=["9.8"], thinking="enabled")).message
    events = await stack.stream("9.11 or 9.8?", stop=["9.8"], thinking="enabled")
    for reasoning, content in (
        (message["reasoning_content"], message["content"]),
        (events.text("reasoning_content"), events.text()),
    ):
        assert reasoning == "9.11 or 9.8? hm"
        assert content == "It is "


@pytest.mark.parametrize("thinking", ["enabled", "disabled", None])
async def test_17_the_grammar_begins_after_the_thinking_and_content_holds_the_json(
    stack: Stack, thinking: str | None
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    text = '{"a": 1}'
    stack.engine.script([{"pieces": [*(["hm", "</mm:think>"] if thinking == "enabled" else []), *text]}])
    answer = await stack.chat("Hi", response_format=form, thinking=thinking, include_reasoning=False)
    assert answer.message["content"] == text
    assert "reasoning_content" not in answer.message
    grammar = stack.sent["grammar"]
    end = Checkpoint.load(TINY).think_end_id
    assert grammar["type"] == ("structural_tag" if thinking is None else "json_schema")  # adaptive: may think first
    assert list(grammar["after_ids"] or ()) == ([end] if thinking == "enabled" else [])


@pytest.mark.parametrize("cut", ["tokens", "letters", "plain ids"])
async def test_18_no_thinking_marker_ever_reaches_the_content(stack: Stack, cut: str) -> None:
    text = "<mm:think>deep thought</mm:think>The answer"
    pieces: list[Any] = [text]
    if cut == "letters":
        pieces = list(text)
    elif cut == "plain ids":  # the marker as several ordinary tokens
        pieces = [[i] for i in Checkpoint.load(TINY).encode_plain(text)]
    stack.engine.script([{"pieces": pieces}])
    fields = {"chat_template_kwargs": {"thinking_mode": "enabled"}}
    events = await stack.stream("Hi", **fields)
    plain = (await stack.chat("Hi", **fields)).message
    for content, reasoning in (
        (events.text(), events.text("reasoning_content")),
        (plain["content"], plain["reasoning_content"]),
    ):
        assert content == "The answer"
        assert reasoning == "deep thought"


async def test_23_headers_come_at_once_and_comments_until_the_first_token() -> None:
    async with Stack([{"pieces": ["late"], "first_delay_ms": 600}], api={"keep_alive_s": 0.1}) as s:
        async with s.open_stream("Hi", thinking="disabled") as response:
            assert response.status == 200
            first = await response.content.readline()
            assert first.startswith(b":")  # no role chunk that would fake a first token
            rest = await response.content.read()
        assert b'"role":"assistant"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_27_an_engine_failure_is_an_error_event_and_no_finish(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["one", "two"], "fail_after": 1}])
    before = await stack.metric("catalejo_errors_total")
    events = await stack.stream("Hi", thinking="disabled")
    assert set(events.chunks[-1]) == {"error"}
    assert set(events.chunks[-1]["error"]) == {"message", "type", "param", "code"}
    assert set(events.finishes()) == {None}
    assert not events.done
    await stack.settled()
    assert await stack.metric("catalejo_errors_total") == before + 1


async def test_29_only_an_assistant_message_is_a_400_or_is_continued(stack: Stack) -> None:
    messages = [{"role": "assistant", "content": "Once upon"}]
    refused = await stack.chat(messages=messages)
    assert refused.status == 400
    assert refused.error["param"] == "messages"
    continued = await stack.chat(messages=messages, continue_final_message=True)
    assert continued.status == 200, continued.raw
    assert stack.sent["text"].endswith("Once upon")

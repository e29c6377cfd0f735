"""Every parameter changes what the engine receives or what the client gets; what is not set is not sent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.prompt import Checkpoint
from tests.api.harness import TINY, Stack


async def test_unset_fields_are_not_sent(stack: Stack) -> None:
    await stack.chat("Hi")
    sent = dict(stack.sent["sampling"])
    assert sent.pop("max_new_tokens") == 131072 - len(stack.sent["ids"])
    assert 497 in sent.pop("stop_token_ids")
    assert sent == {}  # the shipped checkpoint's generation_config.json holds no sampling defaults
    assert (stack.sent["n"], stack.sent["logprobs"], stack.sent["grammar"], stack.sent["priority"]) == (
        1,
        None,
        None,
        0,
    )


async def test_generation_config_gives_the_defaults(tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    shutil.copytree(TINY, model)
    defaults = {"temperature": 1.0, "top_p": 0.95, "top_k": 40}
    (model / "generation_config.json").write_text(json.dumps({**defaults, "do_sample": False, "eos_token_id": 497}))
    async with Stack(model_path=model) as s:
        await s.chat("Hi", top_p=0.5)
        assert {k: s.sent["sampling"].get(k) for k in defaults} == {**defaults, "top_p": 0.5}
    async with Stack(model_path=model, api={"use_generation_config": False}) as s:
        await s.chat("Hi")
        assert set(s.sent["sampling"]) == {"max_new_tokens", "stop_token_ids"}


SAMPLING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"temperature": 0.6}, {"temperature": 0.6}),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"top_p": 0}, {"top_p": 1e-6}),
    ({"top_k": 40}, {"top_k": 40}),
    ({"top_k": 0}, {"top_k": -1}),
    ({"min_p": 0.1}, {"min_p": 0.1}),
    ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ({"frequency_penalty": -1}, {"frequency_penalty": -1.0}),
    ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
    ({"logit_bias": {"5": -100, "007": 3.5}}, {"logit_bias": {"5": -100.0, "7": 3.5}}),
    ({"seed": 7}, {"sampling_seed": 7}),
    ({"seed": -(2**63)}, {"sampling_seed": -(2**63)}),
    ({"max_tokens": 5}, {"max_new_tokens": 5}),
    ({"max_completion_tokens": 6, "max_tokens": 5}, {"max_new_tokens": 6}),
    ({"min_tokens": 2, "max_tokens": 5}, {"min_new_tokens": 2}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
]


@pytest.mark.parametrize(("fields", "sent"), SAMPLING, ids=[str(s[0]) for s in SAMPLING])
async def test_sampling_reaches_the_engine(stack: Stack, fields: dict[str, Any], sent: dict[str, Any]) -> None:
    answer = await stack.chat("Hi", **fields)
    assert answer.status == 200, answer.raw
    assert {k: stack.sent["sampling"][k] for k in sent} == sent


async def test_null_is_absent(stack: Stack) -> None:
    names = ["temperature", "top_k", "stop", "tools", "tool_choice", "response_format", "logit_bias", "thinking"]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **dict.fromkeys(names)}
    assert (await stack.post("/v1/chat/completions", body)).status == 200
    assert set(stack.sent["sampling"]) == {"max_new_tokens", "stop_token_ids"}


async def test_stop_token_ids_join_the_end_of_turn(stack: Stack) -> None:
    await stack.chat("Hi", stop_token_ids=[65])
    assert {65, 497} <= set(stack.sent["sampling"]["stop_token_ids"])
    wrong = await stack.chat("Hi", stop_token_ids=[512])
    assert (wrong.status, wrong.error["param"]) == (400, "stop_token_ids")


async def test_n_choices(stack: Stack) -> None:
    stack.engine.script([{"choices": [{"pieces": ["one"]}, {"pieces": ["two"]}, {"pieces": ["three"]}]}])
    answer = await stack.chat("Hi", n=3, thinking="disabled")
    assert stack.sent["n"] == 3
    assert [(c["index"], c["message"]["content"]) for c in answer.json["choices"]] == [
        (0, "one"),
        (1, "two"),
        (2, "three"),
    ]
    events = await stack.stream("Hi", n=3, thinking="disabled", stream_options={"include_usage": True})
    assert [events.text(index=i) for i in range(3)] == ["one", "two", "three"]
    assert [events.deltas(i)[0]["role"] for i in range(3)] == ["assistant"] * 3
    usage = events.chunks[-1]["usage"]
    assert usage["completion_tokens"] == answer.json["usage"]["completion_tokens"]
    assert usage["prompt_tokens"] == len(stack.sent["ids"])


@pytest.mark.parametrize("stop", ["END", ["zzz", "END"]])
async def test_stop_strings_end_the_answer_and_the_engine(stack: Stack, stop: Any) -> None:
    stack.engine.script([{"pieces": ["abc E", "ND def", *["more"] * 200], "delay_ms": 5}])
    answer = await stack.chat("Hi", stop=stop, thinking="disabled")
    assert answer.message["content"] == "abc "
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    events = await stack.stream("Hi", stop=stop, thinking="disabled")
    assert events.text() == "abc "
    assert events.finishes()[-1] == "stop"
    assert "stop" not in stack.sent["sampling"]
    assert [a["reason"] for a in stack.engine.aborts()] == ["abort_request"] * 2
    await stack.settled()


async def test_a_stop_string_waits_for_the_least_tokens(stack: Stack) -> None:
    letters = [[i] for letter in "aXbXcX" for i in Checkpoint.load(TINY).encode_plain(letter)]
    stack.engine.script([{"pieces": letters}])
    fields: dict[str, Any] = {"stop": "X", "min_tokens": 2, "max_tokens": 100}
    answer = await stack.chat("Hi", **fields, thinking="disabled")
    assert (answer.message["content"], answer.json["choices"][0]["finish_reason"]) == ("aXb", "stop")
    assert answer.json["usage"]["completion_tokens"] == 4
    completion = await stack.post("/v1/completions", {"model": "tiny", "prompt": "Hi", **fields})
    assert completion.json["choices"][0]["text"] == "aXb"


async def test_usage_is_true_when_a_stop_string_ended_the_answer(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["abc END", *["more"] * 200], "delay_ms": 5, "cached_tokens": 64}])
    usage = (await stack.chat("x " * 100, stop="END", thinking="disabled")).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 64
    assert 0 < usage["completion_tokens"] <= 7
    events = await stack.stream("x " * 100, stop="END", thinking="disabled", stream_options={"include_usage": True})
    assert events.chunks[-1]["usage"] == usage


async def test_logprobs_rows_equal_in_stream_and_plain(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["Hel", "lo 猫"]}])
    answer = await stack.chat("Hi", logprobs=True, top_logprobs=2, thinking="disabled")
    assert stack.sent["logprobs"] == 2
    rows = answer.json["choices"][0]["logprobs"]["content"]
    assert len(rows) == answer.json["usage"]["completion_tokens"]
    assert all(set(r) == {"token", "logprob", "bytes", "top_logprobs"} and len(r["top_logprobs"]) == 2 for r in rows)
    assert bytes(b for r in rows for b in r["bytes"]).decode().startswith("Hello 猫")
    events = await stack.stream("Hi", logprobs=True, top_logprobs=2, thinking="disabled")
    streamed = [r for c in events.chunks for r in (c["choices"][0]["logprobs"] or {}).get("content", [])]
    assert streamed == rows
    only = await stack.chat("Hi", logprobs=True, thinking="disabled")
    assert stack.sent["logprobs"] == 0
    assert only.json["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert (await stack.chat("Hi")).json["choices"][0]["logprobs"] is None


async def test_stream_options(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["a", "b", "c"]}])
    plain = (await stack.chat("Hi", thinking="disabled")).json["usage"]
    per_chunk = await stack.stream(
        "Hi", thinking="disabled", stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    counts = [c["usage"]["completion_tokens"] for c in per_chunk.chunks]
    assert counts == sorted(counts)
    assert per_chunk.chunks[-1]["usage"]["completion_tokens"] == plain["completion_tokens"]
    for options in (None, {}, {"include_usage": False}):
        events = await stack.stream("Hi", thinking="disabled", stream_options=options)
        assert all("usage" not in c and c["choices"] for c in events.chunks)


THINKING: list[tuple[dict[str, Any], str]] = [
    ({}, "adaptive"),
    ({"thinking": {"type": "enabled"}}, "enabled"),
    ({"thinking": "enabled"}, "enabled"),
    ({"thinking": {"type": "disabled"}}, "disabled"),
    ({"thinking": {"type": "adaptive"}}, "adaptive"),
    ({"reasoning_effort": "none"}, "disabled"),
    ({"reasoning_effort": "minimal"}, "disabled"),
    ({"reasoning_effort": "low"}, "enabled"),
    ({"reasoning_effort": "high"}, "enabled"),
    ({"chat_template_kwargs": {"thinking_mode": "enabled"}}, "enabled"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "disabled"),
    ({"thinking": "disabled", "reasoning_effort": "high"}, "disabled"),
    ({"chat_template_kwargs": {"thinking_mode": "enabled"}, "reasoning_effort": "none"}, "enabled"),
]
PROMPT_END = {"enabled": "<mm:think>", "disabled": "</mm:think>", "adaptive": "ai\n"}


@pytest.mark.parametrize(("fields", "mode"), THINKING, ids=[str(t[0]) for t in THINKING])
async def test_thinking_mode_shapes_the_prompt(stack: Stack, fields: dict[str, Any], mode: str) -> None:
    answer = await stack.chat("Hi", **fields)
    assert answer.status == 200, answer.raw
    assert stack.sent["text"].endswith(PROMPT_END[mode]), stack.sent["text"][-80:]


async def test_reasoning_goes_to_its_own_field(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["let me", " see</mm:think>", "Answer"]}])
    answer = await stack.chat("Hi", thinking="enabled")
    assert answer.message["reasoning_content"] == "let me see"
    assert answer.message["content"] == "Answer"
    assert answer.json["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    events = await stack.stream("Hi", thinking="enabled")
    assert (events.text("reasoning_content"), events.text()) == ("let me see", "Answer")
    hidden = await stack.chat("Hi", thinking="enabled", include_reasoning=False)
    assert "reasoning_content" not in hidden.message
    assert hidden.message["content"] == "Answer"
    mixed = await stack.chat("Hi", thinking="enabled", separate_reasoning=False)
    assert mixed.message["content"] == "<mm:think>let me see</mm:think>Answer"


@pytest.mark.parametrize(
    ("field", "names"), [("reasoning", {"reasoning"}), ("both", {"reasoning", "reasoning_content"})]
)
async def test_name_of_the_reasoning_field_is_configuration(field: str, names: set[str]) -> None:
    async with Stack([{"pieces": ["hm</mm:think>A"]}], api={"reasoning_field": field}) as s:
        message = (await s.chat("Hi", thinking="enabled")).message
        assert {k for k in message if k.startswith("reasoning")} == names
        events = await s.stream("Hi", thinking="enabled")
        assert all(events.text(n) == "hm" for n in names)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_past_reasoning_is_kept_under_either_name(stack: Stack, field: str) -> None:
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", field: "secret thought"},
        {"role": "user", "content": "three"},
    ]
    await stack.chat(messages=messages)
    assert "<mm:think>secret thought</mm:think>two" in stack.sent["text"]


async def test_past_reasoning_details_are_kept_and_never_break_a_conversation(stack: Stack) -> None:
    details = [{"type": "reasoning.text", "text": "secret "}, {"type": "reasoning.text", "text": "thought"}]
    odd: list[dict[str, Any]] = [{"type": "reasoning.encrypted", "data": "x"}, {"text": None}]
    for given, kept in ((details, "<mm:think>secret thought</mm:think>two"), (odd, "</mm:think>two"), ([], "two")):
        messages = [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two", "reasoning_details": given},
            {"role": "user", "content": "three"},
        ]
        assert (await stack.chat(messages=messages)).status == 200
        assert kept in stack.sent["text"]


async def test_continue_final_message(stack: Stack) -> None:
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}]
    answer = await stack.chat(messages=messages, continue_final_message=True)
    assert answer.status == 200, answer.raw
    assert stack.sent["text"].endswith("One, two,")


async def test_chat_template_kwargs_reach_the_template_and_may_not_shadow_fields(stack: Stack) -> None:
    assert (await stack.chat("Hi", chat_template_kwargs={"anything": 1})).status == 200
    refused = await stack.chat("Hi", chat_template_kwargs={"messages": []})
    assert (refused.status, refused.error["param"]) == (400, "chat_template_kwargs.messages")


async def test_priority_and_service_tier(stack: Stack) -> None:
    for fields, priority, tier in (
        ({"priority": 5}, 5, None),
        ({"service_tier": "priority"}, 10, "priority"),
        ({"service_tier": "flex"}, -10, "flex"),
        ({"service_tier": "auto"}, 0, "default"),
        ({"service_tier": "flex", "priority": 1}, 1, "flex"),
    ):
        answer = await stack.chat("Hi", **fields)
        assert stack.sent["priority"] == priority
        assert answer.json.get("service_tier") == tier


async def test_user_metadata_and_the_like_are_accepted(stack: Stack) -> None:
    fields = {
        "user": "u1", "metadata": {"k": "v"}, "store": False, "prompt_cache_key": "x", "safety_identifier": "y",
        "verbosity": "low", "modalities": ["text"], "parallel_tool_calls": True,
    }  # fmt: skip
    assert (await stack.chat("Hi", **fields, strict_fields=True)).status == 200
    many = await stack.chat("Hi", metadata={str(i): "v" for i in range(17)})
    assert (many.status, many.error["param"]) == (400, "metadata")


async def test_unknown_fields_are_counted_or_refused(stack: Stack) -> None:
    before = await stack.metric("catalejo_unknown_fields_total")
    assert (await stack.chat("Hi", frobnicate=1, other=2)).status == 200
    assert await stack.metric("catalejo_unknown_fields_total") == before + 2
    async with Stack(api={"strict_fields": True}) as s:
        refused = await s.chat("Hi", frobnicate=1)
        assert (refused.error["code"], refused.error["param"]) == ("unknown_parameter", "frobnicate")


async def test_traceparent_reaches_the_engine(stack: Stack) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    await stack.post("/v1/chat/completions", body, {"traceparent": trace})
    assert stack.sent["traceparent"].split("-")[1] == trace.split("-")[1]
    assert stack.sent["headers"]["traceparent"].split("-")[1] == trace.split("-")[1]
    await stack.post("/v1/chat/completions", body, {"traceparent": "rubbish"})
    assert stack.sent["traceparent"] is None


async def test_tenants_have_their_own_cache_salt() -> None:
    async with Stack(admission={"api_keys": ["one", "two"]}) as s:
        salts = []
        for key in ("one", "two", "one"):
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
            await s.post("/v1/chat/completions", body, {"authorization": f"Bearer {key}"})
            salts.append(s.sent["cache_salt"])
        assert salts[0] == salts[2] != salts[1]
        assert "one" not in salts[0]

"""/v1/completions: text and ids as they are, several prompts, echo, logprobs."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest

from gateway.api.completions.echo import STEP_TOKENS
from gateway.prompt import Checkpoint
from tests.api.harness import MODEL, TINY, Answer, Events, Stack, read_events

ROUTE = "/v1/completions"


async def complete(stack: Stack, prompt: Any, **fields: Any) -> Answer:
    return await stack.post(ROUTE, {"model": MODEL, "prompt": prompt, **fields})


async def stream(stack: Stack, prompt: Any, **fields: Any) -> Events:
    body = orjson.dumps({"model": MODEL, "prompt": prompt, "stream": True, **fields})
    headers = {"content-type": "application/json"}
    async with stack.session.post(stack.url + ROUTE, data=body, headers=headers) as response:
        return await read_events(response)


def text_of(events: Events, index: int = 0) -> str:
    return "".join(c["text"] for chunk in events.chunks for c in chunk["choices"] if c["index"] == index)


async def test_text_is_continued_without_a_template(stack: Stack) -> None:
    stack.engine.script([{"pieces": [" upon a time"]}])
    answer = await complete(stack, "Once")
    body = answer.json
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": " upon a time", "logprobs": None, "finish_reason": "stop"}]
    assert stack.sent["text"] == "Once"
    assert stack.sent["sampling"]["max_new_tokens"] == 16
    assert body["usage"]["prompt_tokens"] == len(stack.sent["ids"])


async def test_ids_are_sent_as_they_are(stack: Stack) -> None:
    ids = [10, 20, 30]
    assert (await complete(stack, ids)).status == 200
    assert list(stack.sent["ids"]) == ids


async def test_control_tokens_in_text_stay_text(stack: Stack) -> None:
    checkpoint = Checkpoint.load(TINY)
    await complete(stack, "]~b]ai</mm:think>")
    assert not set(stack.sent["ids"]) & set(checkpoint.added_tokens.values())


@pytest.mark.parametrize("n", [1, 2])
async def test_several_prompts_have_their_choices_in_order(stack: Stack, n: int) -> None:
    def choices(text: str) -> list[dict[str, Any]]:
        return [{"pieces": [f"{text}{i}", "!"]} for i in range(n)]

    stack.engine.script([{"match": "first", "choices": choices("A")}, {"match": "second", "choices": choices("B")}])
    expected = [f"{letter}{i}!" for letter in "AB" for i in range(n)]
    answer = await complete(stack, ["first", "second"], n=n)
    assert [c["text"] for c in answer.json["choices"]] == expected
    assert [c["index"] for c in answer.json["choices"]] == list(range(2 * n))
    events = await stream(stack, ["first", "second"], n=n, stream_options={"include_usage": True})
    assert [text_of(events, i) for i in range(2 * n)] == expected
    assert events.chunks[-1]["usage"]["total_tokens"] == answer.json["usage"]["total_tokens"]
    assert events.done
    await stack.settled()


async def test_echo_and_logprobs(stack: Stack) -> None:
    stack.engine.script([{"pieces": [" upon", " a"]}])
    answer = await complete(stack, "Once", echo=True, logprobs=2)
    [choice] = answer.json["choices"]
    assert choice["text"] == "Once upon a"
    logprobs = choice["logprobs"]
    prompt = len(stack.sent["ids"])
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(logprobs["tokens"]) == prompt + answer.json["usage"]["completion_tokens"]
    assert logprobs["token_logprobs"][:prompt] == [None] * prompt
    assert all(p <= 0 for p in logprobs["token_logprobs"][prompt:])
    assert logprobs["text_offset"][0] == 0
    assert "".join(logprobs["tokens"]).startswith("Once upon a")
    events = await stream(stack, "Once", echo=True, logprobs=2)
    assert text_of(events) == "Once upon a"
    streamed = [
        t for chunk in events.chunks for c in chunk["choices"] if c["logprobs"] for t in c["logprobs"]["tokens"]
    ]
    assert streamed == logprobs["tokens"]


async def test_stop_and_response_format(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["abc. def", " more"]}])
    answer = await complete(stack, "x", stop=". ", response_format={"type": "json_object"})
    assert answer.json["choices"][0]["text"] == "abc"
    assert stack.sent["grammar"]["type"] == "json_schema"


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ("", {}, "prompt"),
    ([], {}, "prompt"),
    ([[]], {}, "prompt"),
    ([1, "x"], {}, "prompt"),
    ([1, 100_000], {}, "prompt"),
    ([1, 500], {}, "prompt"),
    (["x", ""], {}, "prompt[1]"),
    (3, {}, "prompt"),
    ("x", {"logprobs": 21}, "logprobs"),
    ("x", {"best_of": 2}, "best_of"),
    ("x", {"suffix": "y"}, "suffix"),
    ("x", {"model": "none"}, "model"),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("prompt", "fields", "param"), BAD, ids=[f"{b[0]}-{b[1]}" for b in BAD])
async def test_bad_requests(stack: Stack, prompt: Any, fields: dict[str, Any], param: str, streamed: bool) -> None:
    answer = await complete(stack, prompt, stream=streamed, **fields)
    assert answer.status in (400, 404), answer.raw
    assert answer.error["param"].startswith(param), answer.error
    assert not stack.engine.requests()


async def test_a_prompt_over_the_context_is_refused_by_name() -> None:
    async with Stack(context_length=20) as s:
        answer = await complete(s, ["short", "long " * 50])
        assert (answer.error["code"], answer.error["param"]) == ("context_length_exceeded", "prompt")
        await s.settled()


async def test_engine_failure_in_one_of_several_prompts(stack: Stack) -> None:
    stack.engine.script(
        [{"match": "bad", "pieces": ["x", "y"], "fail_after": 1}, {"pieces": ["ok"] * 50, "delay_ms": 5}]
    )
    assert (await complete(stack, ["good", "bad"])).status == 502
    events = await stream(stack, ["good", "bad"])
    assert events.chunks[-1]["error"]["code"] == "engine_error"
    assert not events.done
    await stack.settled()


async def test_the_sampled_token_is_among_its_alternatives(stack: Stack) -> None:
    a, b, c = (Checkpoint.load(TINY).encode_plain(x)[0] for x in "abc")
    rows = [[-2.0, a, [[-0.1, b], [-1.0, c]]], [-0.2, b, [[-0.2, b], [-1.5, c]]]]
    stack.engine.script([{"pieces": [[a, b]], "logprobs": rows}])
    told = (await complete(stack, "Once", logprobs=2)).json["choices"][0]["logprobs"]["top_logprobs"]
    assert told[0] == {"b": -0.1, "c": -1.0, "a": -2.0}
    assert told[1] == {"b": -0.2, "c": -1.5}


async def test_choices_in_all_are_bounded(stack: Stack) -> None:
    answer = await complete(stack, ["a"] * 128, n=2)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_value", "prompt")
    assert "256 choices; at most 128" in answer.error["message"]
    assert not stack.engine.requests()


MANY: list[int] = [65 + i % 26 for i in range(90_000)]
"""As JSON more than is parsed on the loop."""


async def test_many_ids_reach_the_engine_as_they_are_alone_and_side_by_side() -> None:
    async with Stack(context_length=200_000) as s:
        for prompt in (MANY, [MANY, MANY[:3]], [MANY[:5], MANY]):
            before = len(s.engine.requests())
            answer = await complete(s, prompt, max_tokens=1)
            assert answer.status == 200, answer.raw
            lists = prompt if isinstance(prompt[0], list) else [prompt]
            sent = [list(r["ids"]) for r in s.engine.requests()[before:]]
            assert sorted(sent) == sorted(lists)
            assert answer.json["usage"]["prompt_tokens"] == sum(map(len, lists))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([*MANY, 100_000], "prompt"),
        ([*MANY, 500], "prompt"),
        ([*MANY, -1], "prompt"),
        ([[1], [*MANY, 100_000]], "prompt[1]"),
        ([*MANY, "x"], "prompt"),
    ],
    ids=["outside", "placeholder", "negative", "second", "mixed"],
)
async def test_many_ids_with_a_wrong_one_are_refused(prompt: Any, param: str) -> None:
    async with Stack(context_length=200_000) as s:
        answer = await complete(s, prompt)
        assert answer.status == 400 and answer.error["param"].startswith(param), answer.raw
        assert not s.engine.requests()


async def test_a_long_prompt_is_echoed_whole_to_every_choice(stack: Stack) -> None:
    """Longer than one step of the work; characters of several tokens lie over the steps' edges."""
    checkpoint = Checkpoint.load(TINY)
    prompt = checkpoint.encode_plain("a猫é👩‍👩‍👧 ") * 300
    assert len(prompt) > 2 * STEP_TOKENS
    stack.engine.script([{"pieces": ["b", "c"]}])
    fields: dict[str, Any] = {"n": 2, "echo": True, "logprobs": 1, "max_tokens": 10}
    answer = await complete(stack, prompt, **fields)
    events = await stream(stack, prompt, **fields)
    for index, choice in enumerate(answer.json["choices"]):
        rows, length = choice["logprobs"], len(prompt) + 2
        assert choice["text"] == checkpoint.decode(prompt) + "bc" == text_of(events, index)
        assert {key: len(values) for key, values in rows.items()} == dict.fromkeys(rows, length)
        assert rows["token_logprobs"][: len(prompt)] == rows["top_logprobs"][: len(prompt)] == [None] * len(prompt)
        assert all(rows["token_logprobs"][len(prompt) :])
        places = [0, *itertools.accumulate(map(len, rows["tokens"]))]
        assert rows["text_offset"] == places[:-1]
        assert rows["tokens"][-2:] == ["b", "c"]

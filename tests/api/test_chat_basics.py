"""Chat completions from request to answer, plain and streamed."""

from __future__ import annotations

from tests.api.harness import MODEL, Stack


async def test_plain_answer_has_openai_shape_and_usage(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["Good ", "day"]}])
    answer = await stack.chat("Hi", thinking="disabled")
    assert answer.status == 200, answer.raw
    body = answer.json
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["id"].startswith("chatcmpl-")
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Good day", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(stack.sent["ids"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
    assert answer.headers["x-request-id"].startswith("req_")


async def test_stream_gives_the_same_text_and_finish(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["Good ", "day"]}])
    events = await stack.stream("Hi", thinking="disabled", stream_options={"include_usage": True})
    assert events.done
    assert events.text() == "Good day"
    assert events.deltas()[0]["role"] == "assistant"
    assert all("role" not in d for d in events.deltas()[1:])
    assert events.finishes()[-1] == "stop"
    assert set(events.finishes()[:-1]) == {None}
    assert events.chunks[-1]["choices"] == []
    assert events.chunks[-1]["usage"]["prompt_tokens"] == len(stack.sent["ids"])
    assert {c["object"] for c in events.chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in events.chunks}) == 1

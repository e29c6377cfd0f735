"""A stock SGLang server, without our route, serves text; media are refused by name."""

from __future__ import annotations

import base64

import pytest

from tests.api.harness import Stack
from tests.fixtures.media.png import png


@pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "incremental"])
async def test_text_streams_logprobs_and_choices(incremental: bool) -> None:
    async with Stack(engine={"stock_only": True, "incremental": incremental}) as s:
        s.engine.script([{"choices": [{"pieces": ["Hel", "lo 猫"]}, {"pieces": ["Bye", "!"]}], "cached_tokens": 1}])
        fields = {"n": 2, "thinking": "disabled", "logprobs": True, "top_logprobs": 2, "priority": 3, "seed": 4}
        answer = await s.chat("Hi", **fields)
        assert [c["message"]["content"] for c in answer.json["choices"]] == ["Hello 猫", "Bye!"]
        sent = s.sent
        assert (sent["route"], sent["n"], sent["priority"], sent["logprobs"]) == ("generate", 2, 3, 2)
        assert sent["sampling"]["sampling_seed"] == 4
        events = await s.stream("Hi", **fields, stream_options={"include_usage": True})
        assert [events.text(index=i) for i in (0, 1)] == ["Hello 猫", "Bye!"]
        assert events.chunks[-1]["usage"] == answer.json["usage"]
        assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
        rows = [len(c["logprobs"]["content"]) for c in answer.json["choices"]]
        assert sum(rows) == answer.json["usage"]["completion_tokens"]
        await s.settled()


async def test_media_are_refused_by_name() -> None:
    url = "data:image/png;base64," + base64.b64encode(png(56, 56)).decode()
    async with Stack(engine={"stock_only": True}) as s:
        answer = await s.chat([{"type": "image_url", "image_url": {"url": url}}])
        assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
        await s.settled()


@pytest.mark.parametrize("fault", ["error", "reset", "eof", "garbage"])
async def test_failures_and_stop_strings(fault: str) -> None:
    async with Stack(engine={"stock_only": True}) as s:
        s.engine.script([{"pieces": ["one ", "two "], "fail_after": 1, "fault": fault}])
        events = await s.stream("Hi", thinking="disabled")
        assert not events.done
        assert events.chunks[-1]["error"]["code"] == "engine_error"
        s.engine.script([{"pieces": ["abc END", *["more"] * 200], "delay_ms": 5}])
        assert (await s.chat("Hi", stop="END", thinking="disabled")).message["content"] == "abc "
        await s.settled()


async def test_grammar_travels_as_a_sampling_parameter() -> None:
    async with Stack(engine={"stock_only": True}) as s:
        answer = await s.chat("Hi", response_format={"type": "json_object"}, thinking="disabled")
        assert answer.status == 200, answer.raw
        assert s.sent["grammar"]["type"] == "json_schema"

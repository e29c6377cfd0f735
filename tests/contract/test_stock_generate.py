"""POST /generate with `input_ids`, the part of SGLang's own API that every engine keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.client import EngineClient

BODY: dict[str, Any] = {
    "input_ids": [72, 101, 108, 108, 111],
    "sampling_params": {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True},
}


async def test_whole_answer(engine: EngineClient) -> None:
    status, body = await engine.post("/generate", {**BODY, "rid": "stock-1"})
    assert status == 200
    assert len(body["output_ids"]) == 6
    meta = body["meta_info"]
    assert meta["id"] == "stock-1"
    assert meta["finish_reason"]["type"] == "length"
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 6)
    assert meta["cached_tokens"] >= 0


async def test_stream_equals_the_whole_answer(engine: EngineClient) -> None:
    _, whole = await engine.post("/generate", BODY)
    _, text = await engine.post("/generate", {**BODY, "stream": True})
    events = [line[len("data: ") :] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    parsed = [json.loads(e) for e in events[:-1]]
    assert parsed[-1]["meta_info"]["finish_reason"]["type"] == "length"
    cumulative = parsed[-1]["output_ids"]
    incremental = [i for e in parsed for i in e["output_ids"]]
    assert whole["output_ids"] in (cumulative, incremental)


async def test_incremental_stream_says_each_token_once(engine: EngineClient) -> None:
    _, whole = await engine.post("/generate", BODY)
    _, text = await engine.post("/generate", {**BODY, "stream": True, "incremental_stream_output": True})
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert [i for e in events for i in e["output_ids"]] == whole["output_ids"]


async def test_one_logprob_row_per_token(engine: EngineClient) -> None:
    _, body = await engine.post("/generate", {**BODY, "return_logprob": True, "top_logprobs_num": 2})
    meta = body["meta_info"]
    assert [row[1] for row in meta["output_token_logprobs"]] == body["output_ids"]
    assert [len(row) for row in meta["output_top_logprobs"]] == [2] * len(body["output_ids"])


@pytest.mark.parametrize("body", [{}, {"input_ids": []}, {"input_ids": "x"}, {"input_ids": [1], "sampling_params": 3}])
async def test_nonsense_is_a_400(engine: EngineClient, body: dict[str, Any]) -> None:
    status, answer = await engine.post("/generate", body)
    assert status == 400
    assert "error" in answer or answer["object"] == "error"  # SGLang has two shapes for it

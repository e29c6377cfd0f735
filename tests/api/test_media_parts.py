"""Image parts on their way to the engine: order, places, detail, pixels sent once."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gateway.prompt import Checkpoint
from tests.api.harness import TINY, Stack
from tests.fixtures.media.png import png


def image(width: int, height: int, **fields: Any) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(png(width, height)).decode()
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


async def test_images_keep_their_order_and_cover_their_placeholders(stack: Stack) -> None:
    answer = await stack.chat([image(56, 56), text("between"), image(140, 84), text("?")])
    assert answer.status == 200, answer.raw
    sent = stack.sent
    (_, h0, w0), (_, h1, w1) = [i["grid"] for i in sent["items"]]
    assert h0 == w0 and h1 < w1
    token = Checkpoint.load(TINY).image_token_id
    for item in sent["items"]:
        [[offset, length]] = item["ranges"]
        assert list(sent["ids"][offset : offset + length]) == [token] * length
        assert item["sent"]
    assert answer.json["usage"]["prompt_tokens"] == len(sent["ids"])


async def test_detail_low_is_the_area_rule(stack: Stack) -> None:
    tokens = {}
    for detail in ("low", "high", "auto"):
        await stack.chat([image(1400, 1400, detail=detail)])
        [[_, tokens[detail]]] = stack.sent["items"][0]["ranges"]
    assert tokens["low"] <= 576 < tokens["high"] == tokens["auto"]


async def test_a_picture_goes_to_the_engine_once(stack: Stack) -> None:
    parts = [image(64, 48), text("what?")]
    for expected in (True, False):
        assert (await stack.chat(parts)).status == 200
        assert stack.sent["items"][0]["sent"] is expected
    first, second = stack.engine.requests()
    assert first["items"][0]["hash"] == second["items"][0]["hash"]


async def test_rows_the_engine_lost_are_sent_again_and_the_client_sees_nothing(stack: Stack) -> None:
    parts = [image(72, 48), text("what?")]
    assert (await stack.chat(parts)).status == 200
    stack.engine.forget()
    answer = await stack.chat(parts)
    assert answer.status == 200
    statuses = [(r["status"], r["items"][0]["sent"]) for r in stack.engine.requests()]
    assert statuses == [(200, True), (409, False), (200, True)]


async def test_a_second_409_is_a_502() -> None:
    async with Stack([{"status": 409, "missing_hashes": ["*"]}]) as s:
        answer = await s.chat([image(64, 48)])
        assert (answer.status, answer.error["code"]) == (502, "engine_error")
        assert len(s.engine.requests()) == 2
        await s.settled()


@pytest.mark.parametrize("form", ["object", "string"])
async def test_image_url_may_be_an_object_or_a_string(stack: Stack, form: str) -> None:
    part = image(56, 56)
    if form == "string":
        part = {"type": "image_url", "image_url": part["image_url"]["url"]}
    assert (await stack.chat([part])).status == 200
    assert len(stack.sent["items"]) == 1


async def test_tool_results_may_hold_images(stack: Stack) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("here"), image(56, 56)]},
    ]
    assert (await stack.chat(messages=messages)).status == 200
    assert len(stack.sent["items"]) == 1


async def test_the_broken_part_of_several_is_named(stack: Stack) -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    for streamed in (False, True):
        answer = await stack.chat([image(56, 56), text("x"), broken], stream=streamed)
        assert answer.status == 400
        assert answer.error["param"].startswith("messages[0].content[2]")
    await stack.settled()

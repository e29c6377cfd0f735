"""Taking large data URLs out of a body never changes what the body means."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.api.body import parse
from gateway.api.chat.messages import put_back_urls
from gateway.api.chat.protocol import ChatRequest
from gateway.api.large import LARGE_BYTES, parse_large, take_out

BIG = "data:image/png;base64," + "QUJD" * LARGE_BYTES
SMALL = "data:image/png;base64,QUJD"


def body(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


CASES: dict[str, tuple[bytes, int]] = {
    "object": (orjson.dumps(body(image(BIG))), 1),
    "string": (orjson.dumps(body({"type": "image_url", "image_url": BIG})), 1),
    "video": (orjson.dumps(body({"type": "video_url", "video_url": {"url": BIG}}, image(BIG))), 2),
    "small": (orjson.dumps(body(image(SMALL))), 0),
    "spaces": (orjson.dumps(body(image(BIG)), option=orjson.OPT_INDENT_2).replace(b'"url":', b'"url" \n\t :  '), 1),
    "as text": (orjson.dumps(body({"type": "text", "text": BIG})), 0),
    "quoted in text": (orjson.dumps(body({"type": "text", "text": f'{{"url": "{BIG}"}}'})), 0),
    "elsewhere": (orjson.dumps(body(image(BIG), metadata={"url": BIG})), 2),
    "escaped": (orjson.dumps(body(image(BIG))).replace(b"QUJD", b"QU\\/D", 1), 0),
    "not ascii": (orjson.dumps(body(image(BIG + "é"))), 0),
    "tool": (orjson.dumps(body(image(BIG), chat_template_kwargs={"image_url": BIG})), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_same_request_with_and_without(case: str) -> None:
    raw, taken = CASES[case]
    assert len(take_out(raw)[1]) == taken
    assert parse_large(ChatRequest, raw, put_back_urls) == parse(ChatRequest, raw)


def test_tokens_cannot_be_guessed_nor_repeat() -> None:
    raw = CASES["object"][0]
    assert not set(take_out(raw)[1]) & set(take_out(raw)[1])


@pytest.mark.parametrize("raw", [b"", b'"data:', b'{"url":"data:' + b"A" * 50_000, b'"url":"data:"'])
def test_broken_bodies_come_back_unchanged(raw: bytes) -> None:
    assert take_out(raw) == (raw, {})

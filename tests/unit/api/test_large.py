"""Taking large data URLs out of a body never changes what the body means."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from gateway.api.body import parse
from gateway.api.chat.messages import MessageMapper, put_back_urls
from gateway.api.chat.protocol import ChatRequest
from gateway.api.large import LARGE_BYTES, parse_large, take_out
from gateway.errors import ApiError
from gateway.media.preproc import decode_data_url, options_of, reference_digest
from gateway.media.problems import MediaProblem
from gateway.media.settings import MediaSettings
from gateway.media.types import HeldUrl, MediaPart, url_bytes

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
    taken_out = parse_large(ChatRequest, raw, put_back_urls)
    put_back_urls(taken_out, _text)
    assert taken_out == parse(ChatRequest, raw)


@pytest.mark.parametrize("kind", ["image_url", "video_url"])
@pytest.mark.parametrize("form", ["string", "object"])
def test_the_media_room_gets_the_held_url_in_either_form(kind: str, form: str) -> None:
    """Symptom: as a plain string a large picture's stand-in was decoded."""
    raw = orjson.dumps(body({"type": kind, kind: BIG if form == "string" else {"url": BIG}}))
    [part] = MessageMapper(parse_large(ChatRequest, raw, put_back_urls)).media
    assert part.url is not None and isinstance(part.url, HeldUrl) and _text(part.url) == BIG


@pytest.mark.parametrize("wrong", [b"\n", b"\x00"])
def test_what_json_forbids_is_refused_alike(wrong: bytes) -> None:
    raw = CASES["object"][0].replace(b"QUJD", b"QU" + wrong + b"D", 1)
    assert not take_out(raw)[1]
    with pytest.raises(ApiError) as refused:
        parse_large(ChatRequest, raw, put_back_urls)
    assert refused.value.code == "invalid_json"


def test_a_refusal_names_places_of_the_body_as_it_was_sent() -> None:
    raw = CASES["object"][0] + b"x"
    with pytest.raises(ApiError) as ours:
        parse_large(ChatRequest, raw, put_back_urls)
    with pytest.raises(ApiError) as plain:
        parse(ChatRequest, raw)
    assert str(ours.value) == str(plain.value) and ours.value.code == "invalid_json"


def _text(url: str) -> str:
    return url.body[url.start : url.end].decode() if isinstance(url, HeldUrl) else url


def test_a_url_left_in_the_body_is_the_same_url_to_the_media_room() -> None:
    url = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 1000).decode()
    raw = orjson.dumps(body(image(url)))
    [held] = take_out(raw)[1].values()
    options = options_of(MediaPart("image", "p", url=held), MediaSettings())
    assert held.startswith("data:") and url_bytes(held) == len(url)
    assert reference_digest("tenant", held, options) == reference_digest("tenant", url, options)
    assert decode_data_url(held, 1 << 20) == decode_data_url(url, 1 << 20) == ("image/png", bytes(range(256)) * 1000)
    with pytest.raises(MediaProblem):
        decode_data_url(held, 1000)


def test_a_decoded_url_does_not_keep_its_body() -> None:
    raw = CASES["object"][0]
    [held] = take_out(raw)[1].values()
    size = url_bytes(held)
    held.release()
    assert held.body == b"" and url_bytes(held) == size


def test_tokens_cannot_be_guessed_nor_repeat() -> None:
    raw = CASES["object"][0]
    assert not set(take_out(raw)[1]) & set(take_out(raw)[1])


@pytest.mark.parametrize("raw", [b"", b'"data:', b'{"url":"data:' + b"A" * 50_000, b'"url":"data:"'])
def test_broken_bodies_come_back_unchanged(raw: bytes) -> None:
    assert take_out(raw) == (raw, {})

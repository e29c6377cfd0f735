"""Taking large values out of a body never changes what the body means."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.api.body import parse
from gateway.api.chat.messages import MessageMapper, put_back
from gateway.api.chat.protocol import ChatRequest
from gateway.api.completions.protocol import CompletionRequest
from gateway.api.completions.protocol import put_back as put_back_prompts
from gateway.api.large import LARGE_BYTES, parse_large, take_out
from gateway.errors import ApiError
from gateway.media.preproc import decode_data_url, options_of, reference_digest
from gateway.media.problems import MediaProblem
from gateway.media.settings import MediaSettings
from gateway.media.types import HeldUrl, MediaPart, url_bytes

BIG = "data:image/png;base64," + "QUJD" * LARGE_BYTES
SMALL = "data:image/png;base64,QUJD"
WORDS = 'Ein "Wort", 一个词 \U0001f600\n\t\x7f\\ ' * 1500
IDS = [0, 7, 2**32 - 1, 199_999] * 2000


def body(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"enum": [WORDS, IDS]}}}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


CASES: dict[str, tuple[bytes, int]] = {
    "object": (orjson.dumps(body(image(BIG))), 1),
    "string": (orjson.dumps(body({"type": "image_url", "image_url": BIG})), 1),
    "video": (orjson.dumps(body({"type": "video_url", "video_url": {"url": BIG}}, image(BIG))), 2),
    "small": (orjson.dumps(body(image(SMALL))), 0),
    "spaces": (orjson.dumps(body(image(BIG)), option=orjson.OPT_INDENT_2).replace(b'"url":', b'"url" \n\t :  '), 1),
    "as text": (orjson.dumps(body({"type": "text", "text": BIG})), 1),
    "quoted in text": (orjson.dumps(body({"type": "text", "text": f'{{"url": "{BIG}"}}'})), 1),
    "words": (orjson.dumps(body({"type": "text", "text": WORDS}, image(BIG), {"type": "text", "text": "short"})), 2),
    "words escaped": (json.dumps(body({"type": "text", "text": WORDS})).encode(), 1),
    "half a character": (json.dumps(body({"type": "text", "text": WORDS + "\ud83d"})).encode(), 0),
    "history": (
        orjson.dumps(
            body(image(SMALL))
            | {
                "messages": [
                    {"role": "system", "content": WORDS},
                    {"role": "user", "content": "short"},
                    {
                        "role": "assistant",
                        "content": [{"type": "refusal", "refusal": "no"}],
                        "reasoning": WORDS,
                        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": WORDS}}],
                    },
                    {"role": "tool", "content": [{"type": "text", "text": WORDS}]},
                    {"role": "assistant", "content": None, "reasoning_content": WORDS},
                ]
            }
        ),
        5,
    ),
    "words elsewhere": (orjson.dumps(body(image(BIG), tools=[TOOL])), 3),
    "elsewhere": (orjson.dumps(body(image(BIG), metadata={"url": BIG})), 2),
    "escaped": (orjson.dumps(body(image(BIG))).replace(b"QUJD", b"QU\\/D", 1), 0),
    "not ascii": (orjson.dumps(body(image(BIG + "é"))), 0),
    "tool": (orjson.dumps(body(image(BIG), chat_template_kwargs={"image_url": BIG})), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_same_request_with_and_without(case: str) -> None:
    raw, taken = CASES[case]
    assert len(take_out(raw)[1]) == taken
    taken_out = parse_large(ChatRequest, raw, put_back)
    put_back(taken_out, _text)
    assert taken_out == parse(ChatRequest, raw)


PROMPTS: dict[str, tuple[Any, int]] = {
    "text": (WORDS, 1),
    "texts": (["short", WORDS, WORDS], 2),
    "ids": (IDS, 1),
    "lists of ids": ([IDS, [1], IDS[:9]], 3),
    "short lists that are long together": ([[n] * 40 for n in range(1000, 1100)], 100),
    "a single list": ([IDS], 1),
    "small": ([[1, 2], [3]], 0),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_same_prompts_with_and_without(case: str) -> None:
    prompt, taken = PROMPTS[case]
    for raw in (
        orjson.dumps({"model": "m", "prompt": prompt}),
        json.dumps({"prompt": prompt, "model": "m"}, indent=1).encode(),
    ):
        assert len(take_out(raw)[1]) == taken
        ours = [
            p if isinstance(p, str) else list(p)
            for p in parse_large(CompletionRequest, raw, put_back_prompts).prompts()
        ]
        assert ours == parse(CompletionRequest, raw).prompts()


def test_many_ids_become_an_array() -> None:
    [ids] = parse_large(CompletionRequest, orjson.dumps({"model": "m", "prompt": IDS}), put_back_prompts).prompts()
    assert isinstance(ids, np.ndarray) and ids.dtype == np.uint32 and ids.tolist() == IDS


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [WORDS, IDS]},
        {"prompt": ["short", IDS]},
        {"prompt": [[1], WORDS]},
        {"prompt": [[IDS]]},
        {"prompt": [*IDS, -1]},
        {"prompt": [*IDS, 2**32]},
        {"prompt": [*IDS, 1.5]},
        {"prompt": [[1, 2, 3]] * 10_000},
        {"prompt": IDS, "n": 0},
        {"prompt": IDS, "stop_token_ids": IDS},
    ],
    ids=[
        "texts and ids",
        "short and ids",
        "ids and text",
        "deep",
        "negative",
        "too large",
        "float",
        "many",
        "n",
        "stop",
    ],
)
def test_a_wrong_prompt_is_refused_alike(fields: dict[str, Any]) -> None:
    raw = orjson.dumps({"model": "m", **fields})
    with pytest.raises(ApiError) as ours:
        parse_large(CompletionRequest, raw, put_back_prompts)
    with pytest.raises(ApiError) as plain:
        parse(CompletionRequest, raw)
    assert (str(ours.value), ours.value.param) == (str(plain.value), plain.value.param)


@pytest.mark.parametrize("kind", ["image_url", "video_url"])
@pytest.mark.parametrize("form", ["string", "object"])
def test_the_media_room_gets_the_held_url_in_either_form(kind: str, form: str) -> None:
    """Symptom: as a plain string a large picture's stand-in was decoded."""
    raw = orjson.dumps(body({"type": kind, kind: BIG if form == "string" else {"url": BIG}}))
    [part] = MessageMapper(parse_large(ChatRequest, raw, put_back)).media
    assert part.url is not None and isinstance(part.url, HeldUrl) and _text(part.url) == BIG


@pytest.mark.parametrize("wrong", [b"\n", b"\x00"])
def test_what_json_forbids_is_refused_alike(wrong: bytes) -> None:
    raw = CASES["object"][0].replace(b"QUJD", b"QU" + wrong + b"D", 1)
    assert not take_out(raw)[1]
    with pytest.raises(ApiError) as refused:
        parse_large(ChatRequest, raw, put_back)
    assert refused.value.code == "invalid_json"


def test_a_refusal_names_places_of_the_body_as_it_was_sent() -> None:
    raw = CASES["object"][0] + b"x"
    with pytest.raises(ApiError) as ours:
        parse_large(ChatRequest, raw, put_back)
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

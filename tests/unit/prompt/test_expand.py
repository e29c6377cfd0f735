"""Placeholders become as many as the media need; the ids are those of the reference, which expands text first."""

import re

import numpy as np
import pytest

from engine.wire import GenerateRequest, check_placeholders, decode_request, encode_request, item_hash
from gateway.errors import ApiError
from gateway.media.types import PreparedMedia
from gateway.prompt import PromptBuilder, expand
from tests.property.prompt.support import reference_ids, reference_text, tiny

START, END = "]<]start of image[>[", "]<]end of image[>["


def media(kind: str, grid: tuple[int, int, int], timestamps: tuple[float, ...] | None = None) -> PreparedMedia:
    t, h, w = grid
    t_dup = int(kind == "image")
    data = bytes(t * h * w * 588 * (2 - t_dup))
    digest = item_hash(kind, grid, "u8", t_dup, data)
    return PreparedMedia(kind, digest, grid, t * h * w // 4, "u8", t_dup, memoryview(data), timestamps)  # type: ignore[arg-type]


def expected_text(text: str, given: list[PreparedMedia]) -> str:
    rest = iter(given)

    def one(match: re.Match[str]) -> str:
        m = next(rest)
        t, h, w = m.grid
        stamps = [f"]<]{s:.1f} seconds[>[" for s in m.timestamps] if m.timestamps else [""] * t
        return "".join(s + START + match[0] * (h * w // 4) + END for s in stamps)

    return re.sub(r"\]<\](image|video)\[>\[", one, text)


CASES = {
    "one image": ["look", media("image", (1, 4, 4))],
    "two images and text": [media("image", (1, 2, 2)), " and ", media("image", (1, 6, 4)), "?"],
    "video without timestamps": ["a", media("video", (2, 4, 6))],
    "video with timestamps after text": ["at ", media("video", (3, 2, 4), (0.0, 2.04, 10.25)), " b"],
    "videos side by side": [media("video", (1, 2, 2), (0.0,)),
                            media("video", (2, 2, 2), (0.5, 1.5)), media("image", (1, 2, 2))],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_expanded_ids_and_items_are_those_of_the_reference(name: str) -> None:
    parts = [{"type": "text", "text": p} if isinstance(p, str) else {"type": p.modality} for p in CASES[name]]
    given = [p for p in CASES[name] if not isinstance(p, str)]
    messages = [{"role": "user", "content": parts}]
    rendered = PromptBuilder(tiny()).render(messages)
    ids, items = expand(rendered, given, tiny())
    assert ids.dtype == np.uint32
    assert ids.tolist() == reference_ids(tiny(), expected_text(reference_text(tiny(), messages), given))
    request = GenerateRequest(rid="r", input_ids=ids, items=tuple(items))
    decoded = decode_request(b"".join(encode_request(request)))  # every rule of the contract
    check_placeholders(decoded, tiny().image_token_id, tiny().video_token_id)
    assert [i.hash for i in items] == [m.hash for m in given]


def test_text_alone_is_left_as_it_is() -> None:
    rendered = PromptBuilder(tiny()).render([{"role": "user", "content": "hi"}])
    ids, items = expand(rendered, [], tiny())
    assert ids.tolist() == rendered.ids and items == []


def test_media_that_do_not_fit_are_a_fault_of_ours() -> None:
    rendered = PromptBuilder(tiny()).render([{"role": "user", "content": [{"type": "image"}]}])
    for given in ([], [media("video", (1, 2, 2))], [media("image", (1, 2, 2))] * 2):
        with pytest.raises(ValueError, match="placeholders"):
            expand(rendered, given, tiny())


def test_media_where_the_template_has_no_place_are_refused() -> None:
    with pytest.raises(ApiError) as e:
        PromptBuilder(tiny()).render(
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "image"}], "tool_calls": []},
             {"role": "system", "content": [{"type": "video"}]}]
        )  # fmt: skip
    assert e.value.param == "messages[2].content"

"""Gateway + local engine and transformers' own generate give the same greedy tokens for the same request."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gateway.parsing import OutputParser
from gateway.parsing.events import ContentDelta, ReasoningDelta
from gateway.prompt import Checkpoint
from tests.e2e import reference
from tests.e2e.conftest import TINY, Stack

LONG = " ".join(f"Line {i}: the picture shows a red square beside a blue circle." for i in range(30))
NEW_TOKENS = 32


def as_text(ids: list[int]) -> tuple[str, str]:
    """(content, reasoning) of an id list, as the gateway's own parser reads it."""
    parser = OutputParser(Checkpoint.load(TINY), starts_in_reasoning=False, parse_tools=False)
    events = [*parser.feed(ids), *parser.finish()]
    content = "".join(e.text for e in events if isinstance(e, ContentDelta))
    return content, "".join(e.text for e in events if isinstance(e, ReasoningDelta))


@pytest.mark.parametrize("pictures", [0, 1, 2])
@pytest.mark.parametrize("text", ["Report the temperature.", LONG], ids=["short", "longer-than-top-k-blocks"])
def test_greedy_tokens_equal_transformers(stack: Stack, text: str, pictures: int) -> None:
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    images = []
    for i in range(pictures):
        png, image = reference.picture(i, 150 + 30 * i, 90 + 50 * i)
        url = "data:image/png;base64," + base64.b64encode(png).decode()
        ours += [{"type": "text", "text": f"{i}:"}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
        theirs += [{"type": "text", "text": f"{i}:"}, {"type": "image"}]
        images.append(image)
    ours.append({"type": "text", "text": text})
    theirs.append({"type": "text", "text": text})

    want = reference.greedy([{"role": "user", "content": theirs}], images, NEW_TOKENS, thinking_mode="disabled")
    answer = stack.chat(
        [{"role": "user", "content": ours}], temperature=0, max_tokens=NEW_TOKENS, thinking={"type": "disabled"}
    )
    assert answer["usage"]["completion_tokens"] == len(want)
    message = answer["choices"][0]["message"]
    assert (message["content"] or "", message.get("reasoning_content") or "") == as_text(want)

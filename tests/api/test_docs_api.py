"""docs/api.md: every example is accepted, and every field of a request has one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.api.chat.protocol import ChatRequest
from gateway.api.completions.protocol import CompletionRequest
from gateway.errors import ERRORS
from tests.api.harness import CHAT, MODEL, ROOT, Stack

TEXT = (ROOT / "docs/api.md").read_text(encoding="utf-8")
CHAT_PART, COMPLETIONS_PART = TEXT.split("## Completions\n")
BASE = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


def examples(text: str) -> list[dict[str, Any]]:
    return [json.loads(e) for e in re.findall(r"^\|.*\| `(\{.*\})` \|$", text, re.M)]


def fields_with_examples(text: str) -> set[str]:
    return {k for e in examples(text) for k in e}


@pytest.mark.parametrize("example", examples(CHAT_PART), ids=lambda e: ",".join(e)[:40])
async def test_chat_example_is_accepted(stack: Stack, example: dict[str, Any]) -> None:
    answer = await stack.post(CHAT, {**BASE, "strict_fields": True, **example})
    assert answer.status == 200, answer.raw


@pytest.mark.parametrize("example", examples(COMPLETIONS_PART), ids=lambda e: ",".join(e)[:40])
async def test_completion_example_is_accepted(stack: Stack, example: dict[str, Any]) -> None:
    answer = await stack.post("/v1/completions", {"model": MODEL, "strict_fields": True, **example})
    assert answer.status == 200, answer.raw


def test_every_field_has_an_example() -> None:
    assert set(ChatRequest.model_fields) <= fields_with_examples(CHAT_PART)
    assert set(CompletionRequest.model_fields) <= fields_with_examples(TEXT)


def test_every_error_code_is_listed() -> None:
    media = {c for c in ERRORS if c.startswith(("media_", "invalid_media", "video_"))}
    for code in set(ERRORS) - media - {"client_closed_request"}:
        assert f"`{code}`" in TEXT, code

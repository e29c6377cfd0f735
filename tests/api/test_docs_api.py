"""docs/api.md: every example is run and served, and every field of a request, nested ones too, has one."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import aiohttp
import pytest
from pydantic import BaseModel

from gateway.api.chat.protocol import ChatRequest
from gateway.api.completions.protocol import CompletionRequest
from gateway.api.tokenize.protocol import DetokenizeRequest, TokenizeText
from gateway.errors import ERRORS
from tests.api.harness import CHAT, MODEL, ROOT, Stack
from tests.fixtures.media.png import png

TEXT = (ROOT / "docs/api.md").read_text(encoding="utf-8")
CHAT_PART, COMPLETIONS_PART = TEXT.split("## Completions\n")
BASE = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
VIDEO = (ROOT / "tests/fixtures/preproc/media/v_base_faststart.mp4").read_bytes()
VIDEO_URL = "https://example.com/clip.mp4"


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(e) for e in re.findall(r"^\|.*\| `(\{.*\})` \|$", text, re.M)]


def blocks(text: str) -> list[dict[str, Any]]:
    return [json.loads(e) for e in re.findall(r"^```json\n(.*?)^```", text, re.M | re.S)]


def commands(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(path, body) of each curl command."""
    out = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for words in (shlex.split(line) for line in block.replace("\\\n", " ").splitlines()):
            assert words[0] == "curl", words
            [url] = [w for w in words if w.startswith("http://127.0.0.1:8000")]
            out.append((url.removeprefix("http://127.0.0.1:8000"), json.loads(words[words.index("-d") + 1])))
    return out


CHAT_EXAMPLES = rows(CHAT_PART) + blocks(CHAT_PART)


async def with_files(stack: Stack, example: dict[str, Any]) -> dict[str, Any]:
    """Uploads what the example's file ids stand for; the video's URL becomes its bytes."""
    text = json.dumps(example)
    for name, kind, data in (("image", "image/png", png(56, 56)), ("video", "video/mp4", VIDEO)):
        if f"file-{name}" in text:
            form = aiohttp.FormData({"purpose": "vision"})
            form.add_field("file", data, filename=name, content_type=kind)
            text = text.replace(f"file-{name}", (await stack.call("POST", "/v1/files", data=form)).json["id"])
    value: dict[str, Any] = json.loads(
        text.replace(VIDEO_URL, "data:video/mp4;base64," + base64.b64encode(VIDEO).decode())
    )
    return value


@pytest.mark.parametrize("example", CHAT_EXAMPLES, ids=lambda e: ",".join(e)[:40])
async def test_chat_example_is_served(stack: Stack, example: dict[str, Any]) -> None:
    answer = await stack.post(CHAT, {**BASE, "strict_fields": True, **await with_files(stack, example)})
    assert answer.status == 200, answer.raw


@pytest.mark.parametrize("example", rows(COMPLETIONS_PART), ids=lambda e: ",".join(e)[:40])
async def test_completion_example_is_served(stack: Stack, example: dict[str, Any]) -> None:
    answer = await stack.post("/v1/completions", {"model": MODEL, "strict_fields": True, **example})
    assert answer.status == 200, answer.raw


@pytest.mark.parametrize(("path", "body"), commands(TEXT), ids=[f"{i}-{p}" for i, (p, _) in enumerate(commands(TEXT))])
async def test_command_is_answered(stack: Stack, path: str, body: dict[str, Any]) -> None:
    assert body["model"] == "demo"  # the name that `make serve` serves
    answer = await stack.post(path, {**body, "model": MODEL})
    assert answer.status == 200, answer.raw


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for inner in get_args(annotation):
        yield from models_in(inner)


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from keys_of(one)
    elif isinstance(value, list):
        for one in value:
            yield from keys_of(one)


def test_every_field_has_an_example() -> None:
    assert set(ChatRequest.model_fields) <= {k for e in CHAT_EXAMPLES for k in e}
    assert set(CompletionRequest.model_fields) <= {k for e in rows(TEXT) for k in e}
    bodies = [body for _, body in commands(TEXT)]
    told = {k for body in bodies for k in body} | {"add_special_tokens"}
    assert set(TokenizeText.model_fields) | set(DetokenizeRequest.model_fields) <= told


def test_every_nested_field_is_told() -> None:
    shown = {k for e in [*CHAT_EXAMPLES, *rows(COMPLETIONS_PART)] for k in keys_of(e)}
    for model in {*models_in(ChatRequest), *models_in(CompletionRequest)}:
        for name, field in model.model_fields.items():
            assert (field.alias or name) in shown or f"`{name}`" in TEXT, f"{model.__name__}.{name}"


def test_every_error_code_is_listed() -> None:
    media = {c for c in ERRORS if c.startswith(("media_", "invalid_media", "video_"))}
    for code in set(ERRORS) - media - {"client_closed_request"}:
        assert f"`{code}`" in TEXT, code

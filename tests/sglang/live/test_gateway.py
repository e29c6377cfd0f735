"""The whole way: an OpenAI chat request with a picture and a JSON schema, through the gateway, to real SGLang."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from PIL import Image

from tests.contract.targets import TINY
from tests.sglang.live.stack import gateway_in_front


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway_in_front(os.environ["CATALEJO_CONTRACT_URL"], TINY, "tiny", tmp_path_factory.mktemp("gateway")) as url:
        yield url


def picture(colour: str) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.new("RGB", (112, 84), colour).save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


async def chat(gateway: str, content: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "temperature": 0, "messages": [{"role": "user", "content": content}], **fields}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        async with session.post(f"{gateway}/v1/chat/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return dict(answer)


async def test_pictures_reach_the_model_and_its_prefix_cache(gateway: str) -> None:
    text = {"type": "text", "text": "What is in these pictures? Take your time and say it all."}
    ask = [picture("red"), picture("blue"), text]
    first = await chat(gateway, ask, max_tokens=8)
    again = await chat(gateway, ask, max_tokens=8)
    other = await chat(gateway, [picture("green"), picture("blue"), text], max_tokens=8)
    assert first["usage"]["prompt_tokens"] > 24
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    assert (
        other["usage"]["prompt_tokens_details"]["cached_tokens"]
        < again["usage"]["prompt_tokens_details"]["cached_tokens"]
    )


async def test_a_schema_binds_the_answer(gateway: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}
    answer = await chat(gateway, "A city?", max_tokens=120, response_format=wanted, thinking={"type": "disabled"})
    assert json.loads(answer["choices"][0]["message"]["content"])["city"] in ("Rome", "Oslo")

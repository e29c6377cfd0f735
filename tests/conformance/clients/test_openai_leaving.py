"""openai (Python): a client that leaves, in each of its ways, aborts the engine's request."""

from __future__ import annotations

import asyncio

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.conformance.stack import Stack

HELLO = [{"role": "user", "content": "Hello"}]
ENDLESS = {"pieces": ["again "] * 3000, "delay_ms": 10}
LATE = {"pieces": ["late"], "first_delay_ms": 60_000}


@pytest.mark.parametrize("stream", [False, True])
def test_timeout_during_prefill(stack: Stack, stream: bool) -> None:
    stack.script(LATE)
    client = OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0, timeout=0.5)

    def ask() -> None:
        list(client.chat.completions.create(model=stack.model, messages=HELLO, stream=stream))

    # Streamed, the response has begun: the client then hands on its transport's own timeout.
    with pytest.raises((openai.APITimeoutError, httpx2.ReadTimeout)):
        ask()
    [abort] = stack.aborts()
    assert abort["phase"] == "prefill"


def test_leaving_the_loop_and_closing(stack: Stack) -> None:
    stack.script(ENDLESS)
    client = OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key)
    with client.chat.completions.create(model=stack.model, messages=HELLO, stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    [abort] = stack.aborts()
    assert abort["phase"] == "decode"


def test_leaving_the_stream_helper(stack: Stack) -> None:
    stack.script(ENDLESS)
    client = OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key)
    with client.chat.completions.stream(model=stack.model, messages=HELLO) as stream:
        next(e for e in stream if e.type == "content.delta")
    assert len(stack.aborts()) == 1


async def test_async_stream_close(stack: Stack) -> None:
    stack.script(ENDLESS)
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key) as client:
        stream = await client.chat.completions.create(model=stack.model, messages=HELLO, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        [abort] = await asyncio.to_thread(stack.aborts)
    assert abort["phase"] == "decode"


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelled_task(stack: Stack, stream: bool) -> None:
    stack.script(LATE)
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key) as client:

        async def ask() -> None:
            answer = await client.chat.completions.create(model=stack.model, messages=HELLO, stream=stream)
            async for _ in answer:
                pass

        task = asyncio.create_task(ask())
        await asyncio.to_thread(stack.wait_for_request)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [abort] = await asyncio.to_thread(stack.aborts)
    assert abort["phase"] == "prefill"

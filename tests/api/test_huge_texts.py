"""Texts that no prompt can be: refused quickly, the same on every endpoint; two large ones at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.api.generation.text import TextWork, huge_texts, text_bytes
from gateway.api.settings import ApiSettings
from gateway.errors import ApiError
from gateway.prompt import Checkpoint
from tests.api.harness import CHAT, MODEL, TINY, Stack

HUGE = "a" * (60 << 20)
LONG = "b" * (3 << 20)


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        (CHAT, "messages", lambda t: {"messages": [{"role": "user", "content": t}]}),
        ("/v1/completions", "prompt", lambda t: {"prompt": t}),
        ("/v1/tokenize", "prompt", lambda t: {"prompt": t}),
        ("/v1/tokenize", "messages", lambda t: {"messages": [{"role": "user", "content": t}]}),
    ],
)
@pytest.mark.parametrize("text", [HUGE, LONG], ids=["huge", "long"])
async def test_more_than_the_context_is_told(stack: Stack, path: str, field: str, body, text: str) -> None:
    answer = await stack.post(path, {"model": MODEL, **body(text)})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "context_length_exceeded", field)
    limit = (await stack.get(f"/v1/models/{MODEL}")).json["context_length"]
    assert f"{limit} tokens" in answer.error["message"] and "at least" in answer.error["message"]


async def test_text_above_the_configured_bytes() -> None:
    async with Stack(api={"max_text_bytes": 2048}) as s:
        for path, body, param in (
            (CHAT, {"messages": [{"role": "user", "content": "é" * 1025}]}, "messages"),
            (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [
                {"type": "function", "function": {"name": "f", "description": "y" * 2048}}]}, "messages"),
            ("/v1/completions", {"prompt": "é" * 1025}, "prompt"),
            ("/v1/completions", {"prompt": ["x" * 1025, "y" * 1025]}, "prompt"),
            ("/v1/tokenize", {"prompt": "é" * 1025}, "prompt"),
        ):  # fmt: skip
            answer = await s.post(path, {"model": MODEL, **body})
            assert (answer.status, answer.error["code"]) == (400, "string_above_max_length"), answer.raw
            assert answer.error["param"] == param and "2048" in answer.error["message"]
        ok = await s.chat("\u00e9" * 900, max_tokens=1)  # escaped in the body: 5400 bytes there, 1800 of text
        assert ok.status == 200, ok.raw


async def test_two_at_a_time_and_the_cancelled_leave_the_queue() -> None:
    pool = huge_texts()
    work = TextWork(ApiSettings(), Checkpoint.load(TINY), lambda: 1 << 30, pool)
    running, most, go, lock, ran = 0, 0, threading.Event(), threading.Lock(), []

    def step(name: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(10)
        with lock:
            running -= 1
            ran.append(name)

    tasks = [asyncio.create_task(work.run(1 << 20, lambda i=i: step(i), "messages")) for i in range(6)]
    await asyncio.sleep(0.05)
    tasks[3].cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    pool.shutdown()
    assert most == 2
    assert sorted(ran) == [0, 1, 2, 4, 5]


def test_text_is_counted_wherever_it_stands() -> None:
    assert text_bytes([{"a": "é"}, ["x", 1, None, {"b": ("yy",)}]]) == 1 + 2 + 1 + 1 + 2


def test_escapes_are_not_counted_against_the_client() -> None:
    work = TextWork(ApiSettings(max_text_bytes=1024), Checkpoint.load(TINY), lambda: 1 << 30, huge_texts())
    work.check(6000, ["é" * 500], "messages")
    with pytest.raises(ApiError, match="1026 bytes of text; at most 1024"):
        work.check(6000, ["é" * 513], "messages")

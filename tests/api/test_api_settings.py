"""Every setting of the api room changes what the engine receives or what the client gets."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import orjson
import pytest

from tests.api.harness import CHAT, Stack, body_of
from tests.api.m3 import SUM, tool


@pytest.mark.parametrize(("mode", "end"), [("enabled", "<mm:think>"), ("disabled", "</mm:think>")])
async def test_default_thinking(mode: str, end: str) -> None:
    async with Stack(api={"default_thinking": mode}) as s:
        assert (await s.chat("Hi")).status == 200
        assert s.sent["text"].endswith(end)
        await s.chat("Hi", thinking="adaptive")
        assert not s.sent["text"].endswith(end)


async def test_default_max_tokens() -> None:
    async with Stack(api={"default_max_tokens": 7}) as s:
        await s.chat("Hi")
        assert s.sent["sampling"]["max_new_tokens"] == 7
        await s.chat("Hi", max_tokens=9)
        assert s.sent["sampling"]["max_new_tokens"] == 9


TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


@pytest.mark.parametrize(
    ("setting", "fields", "fitting"),
    [
        ({"max_n": 2}, {"n": 3}, {"n": 2}),
        ({"max_messages": 2}, {"messages": TURNS}, {"messages": TURNS[:1]}),
        ({"max_tools": 1}, {"tools": [SUM, tool("other")]}, {"tools": [SUM]}),
    ],
    ids=["max_n", "max_messages", "max_tools"],
)
async def test_counts_are_bounded(setting: dict[str, int], fields: dict[str, Any], fitting: dict[str, Any]) -> None:
    async with Stack(api=setting) as s:
        refused = await s.chat("Hi", **fields)
        assert (refused.status, refused.error["param"]) == (400, next(iter(fields)))
        assert str(next(iter(setting.values()))) in refused.error["message"]
        assert (await s.chat("Hi", **fitting)).status == 200


async def test_text_of_one_prompt_is_bounded() -> None:
    async with Stack(api={"max_text_bytes": 2000}) as s:
        refused = await s.chat("x" * 2001)
        assert (refused.error["code"], refused.error["param"]) == ("string_above_max_length", "messages")
        assert (await s.chat("x" * 1000)).status == 200


@pytest.mark.parametrize("setting", ["offload_bytes", "offload_prompt_bytes"])
async def test_on_or_off_the_loop_gives_the_same_prompt(stack: Stack, setting: str) -> None:
    await stack.chat("Héllo " * 50, tools=[SUM])
    expected = stack.sent["ids"]
    async with Stack(api={setting: 0}) as s:
        assert (await s.chat("Héllo " * 50, tools=[SUM])).status == 200
        assert s.sent["ids"] == expected


async def test_a_client_that_takes_nothing_has_left() -> None:
    many = {"stream": True, "thinking": "disabled", "logprobs": True, "top_logprobs": 20}  # more than the sockets hold
    async with Stack([{"pieces": [[65] * 400] * 15}], api={"client_stall_s": 0.3}) as s:
        body = orjson.dumps(body_of("Hi", many))
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        own = socket.create_connection(("127.0.0.1", s.port))
        own.sendall(head.encode() + body)
        async with asyncio.timeout(30):
            while not await s.metric("catalejo_client_disconnects_total"):
                await asyncio.sleep(0.05)
        await s.settled()
        own.close()


async def test_answers_do_not_wait_for_acknowledgements(stack: Stack) -> None:
    """Nagle's algorithm and delayed acknowledgements together hold each small piece for 40 ms."""
    await stack.chat("Hi")
    assert stack._server is not None
    for connection in stack._server.server_state.connections:
        own = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_without_a_generation_prompt_the_turn_is_not_opened(stack: Stack) -> None:
    await stack.chat("Hi")
    opened = stack.sent["text"]
    await stack.chat("Hi", add_generation_prompt=False)
    assert opened.startswith(stack.sent["text"])
    assert not stack.sent["text"].endswith("ai\n")

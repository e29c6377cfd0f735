"""Slow picture servers must not keep text waiting."""

from __future__ import annotations

import asyncio

from tests.api.harness import Stack


async def test_text_is_answered_while_every_picture_hangs() -> None:
    """Four places, eight requests whose picture never comes: text used to wait out the whole fetch timeout."""
    held = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    media = {"fetch": {"private_endpoints": [f"127.0.0.1:{port}"], "total_timeout_s": 20, "idle_timeout_s": 20}}
    async with Stack(admission={"max_in_flight": 4}, media=media) as stack:
        part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/x.png"}}
        hanging = [asyncio.create_task(stack.chat([part])) for _ in range(8)]
        await asyncio.sleep(0.2)
        assert not any(t.done() for t in hanging)
        answer = await asyncio.wait_for(stack.chat("Hi"), 5)
        assert answer.status == 200
        assert (await asyncio.wait_for(stack.get("/health"), 5)).status == 200
        held.set()
        assert {(await t).status for t in hanging} == {400}
    server.close()

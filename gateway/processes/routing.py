"""One view of the engines for all processes of a `--workers N` command: what their prefix caches hold, and how busy they are.

Each process tells the others where it sent what, as block names (8 bytes for each `routing.block_tokens`), and each keeps the
whole index: a conversation finds its prefix whichever process its next request reaches. What each has in flight is told
every `LOAD_EVERY_S`, when it has changed. A word arrives a moment later, and a process that is restarted starts with an empty
index: both make a worse choice, never a wrong answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from gateway.processes.client import HubClient
from gateway.routing.elsewhere import Load
from gateway.routing.policies import RouteRequest
from gateway.routing.router import Router

SENT: Final = "sent"
DRAIN: Final = "drain"
LOAD: Final = "load"
LOAD_EVERY_S: Final = 0.1
GONE: Final = "gone"
"""The hub's own word: a process has died."""
NAME_BYTES: Final = 8


def share_routing(hub: HubClient, routers: Sequence[Router]) -> None:
    """`routers`: one per model, in the configuration's order, which is the same in every process."""

    def teller(index: int) -> Callable[[str, RouteRequest], None]:
        def tell(engine: str, request: RouteRequest) -> None:
            hub.tell(SENT, [index, engine, request.prompt_tokens, request.block_tokens, b"".join(request.names)])

        return tell

    def heard(told: list[Any]) -> None:
        index, engine, prompt_tokens, block_tokens, joined = told
        names = [joined[i : i + NAME_BYTES] for i in range(0, len(joined), NAME_BYTES)]
        routers[index].heard(engine, RouteRequest(prompt_tokens, names, block_tokens))

    for index, router in enumerate(routers):
        router.on_sent = teller(index)

    def drained(told: list[Any]) -> None:
        name, draining = told
        for router in routers:
            if router.drain(name, draining):
                return

    hub.on(SENT, heard)
    hub.on(DRAIN, drained)


@asynccontextmanager
async def share_load(hub: HubClient, routers: Sequence[Router]) -> AsyncIterator[None]:
    def heard(told: list[Any]) -> None:
        process, loads = told
        for router, its in zip(routers, loads, strict=True):
            router.elsewhere.tell(process, {name: tuple(load) for name, load in its.items()})

    def gone(process: int) -> None:
        for router in routers:
            router.elsewhere.gone(process)

    async def tell() -> None:
        last: list[dict[str, Load]] = []
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            now = [router.loads() for router in routers]
            if now != last:
                hub.tell(LOAD, [hub.number, now])
                last = now

    hub.on(LOAD, heard)
    hub.on(GONE, gone)
    task = asyncio.create_task(tell(), name="share load")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def tell_drain(hub: HubClient, name: str, draining: bool) -> None:
    """An administrator's word holds for all processes, also those that are started later."""
    hub.tell(DRAIN, [name, draining], keep=name)

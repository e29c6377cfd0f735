"""One view of what the engines' prefix caches hold, for all processes of a `--workers N` command: each tells the others where
it sent what, as block names (8 bytes for each `routing.block_tokens`), and each keeps the whole index.

So a conversation finds its prefix whichever process its next request reaches. A word arrives a moment later, and a process that
is restarted starts with an empty index: both make a worse choice, never a wrong answer. Load (requests in flight) is
each process's own; the kernel spreads connections evenly, so it is a fair sample of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.processes.client import HubClient
from gateway.routing.policies import RouteRequest
from gateway.routing.router import Router

SENT: Final = "sent"
DRAIN: Final = "drain"
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


def tell_drain(hub: HubClient, name: str, draining: bool) -> None:
    """An administrator's word holds for all processes, also those that are started later."""
    hub.tell(DRAIN, [name, draining], keep=name)

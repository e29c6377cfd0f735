"""The event stream against a server played by the test: each way out gives everything back, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.api.sse import KEEP_ALIVE, Client, EventStream, Produce
from gateway.errors import ApiError


class Server:
    """Plays uvicorn and the connection: `leave` is the client's leaving, `stuck` a client that takes nothing."""

    nothing = b""

    def __init__(self) -> None:
        self.gone = False
        self.stuck = asyncio.Event()
        self.sent: list[bytes] = []
        self.ended = False
        self.notes: list[str] = []
        self._told: Callable[[], object] | None = None

    async def receive(self) -> dict[str, Any]:
        raise AssertionError("the body has been read")

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            await self.drain()
            self.sent.append(message["body"])
            self.ended = not message["more_body"]

    def write(self, data: bytes) -> bool:
        self.sent.append(data)
        return not self.stuck.is_set()

    async def drain(self) -> None:
        while self.stuck.is_set():
            await asyncio.sleep(0.001)

    def watch(self, told: Callable[[], object] | None) -> None:
        self._told = told

    def leave(self) -> None:
        self.gone = True
        if self._told is not None:
            self._told()

    def stalled(self, seconds: float) -> bool:
        return True

    def abort(self) -> None:
        self.notes.append("aborted")
        self.leave()

    async def serve(self, produce: Produce, **times: float) -> None:
        async def closed() -> None:
            self.notes.append("closed")

        stream = EventStream(
            produce,
            keep_alive_s=times.get("keep_alive_s", 60),
            stall_s=times.get("stall_s", 60),
            on_close=closed,
            on_failure=lambda e: self.notes.append(e.code),
            on_disconnect=lambda: self.notes.append("gone"),
        )
        scope = {"type": "http", "extensions": {"catalejo.connection": self}}
        await stream(scope, self.receive, self.send)


def pieces(*data: bytes, wait_s: float = 0, then: Exception | None = None) -> Produce:
    async def produce(client: Client) -> None:
        for one in data:
            if wait_s:
                await asyncio.sleep(wait_s)
            if not client.write(one):
                await client.ready()
        if then is not None:
            raise then

    return produce


async def test_finished() -> None:
    server = Server()
    await server.serve(pieces(b"a", b"b"))
    assert (server.sent, server.ended, server.notes) == ([b"a", b"b", b""], True, ["closed"])


@pytest.mark.parametrize(
    ("error", "code"), [(ApiError("engine_error", "x"), "engine_error"), (KeyError("x"), "internal_error")]
)
async def test_failed(error: Exception, code: str) -> None:
    server = Server()
    await server.serve(pieces(b"a", then=error))
    assert server.notes == [code, "closed"]
    assert server.sent[0] == b"a" and code.encode() in server.sent[1] and b"[DONE]" not in server.sent[1]
    assert server.ended


async def test_client_gone() -> None:
    server = Server()
    task = asyncio.create_task(server.serve(pieces(b"a", b"b", wait_s=30)))
    await asyncio.sleep(0)
    server.leave()
    await task
    assert (server.sent, server.ended, server.notes) == ([], False, ["gone", "closed"])


async def test_client_that_has_left_before_the_first_piece() -> None:
    server = Server()
    server.leave()
    await server.serve(pieces(b"a"))
    assert (server.sent, server.ended, server.notes) == ([], False, ["gone", "closed"])


async def test_client_takes_nothing() -> None:
    server = Server()
    server.stuck.set()
    await server.serve(pieces(b"a", b"b"), stall_s=0.05)
    assert (server.sent, server.notes) == ([b"a"], ["aborted", "gone", "closed"])


async def test_client_that_takes_nothing_of_the_end() -> None:
    """Symptom: the last piece was written, the client took nothing more, and the stream's place was held for ever."""
    server = Server()

    async def produce(client: Client) -> None:
        client.write(b"a")
        server.stuck.set()

    await server.serve(produce, stall_s=0.05)
    assert (server.sent, server.notes) == ([b"a"], ["aborted", "gone", "closed"])


async def test_no_comments_for_a_client_that_takes_nothing() -> None:
    server = Server()
    server.stuck.set()
    task = asyncio.create_task(server.serve(pieces(b"a", b"b"), keep_alive_s=0.01))
    await asyncio.sleep(0.1)
    server.stuck.clear()
    await task
    assert server.sent == [b"a", b"b", b""]


async def test_comments_while_nothing_comes_and_none_in_a_busy_stream() -> None:
    quiet, busy = Server(), Server()
    await quiet.serve(pieces(b"a", wait_s=0.2), keep_alive_s=0.05)
    assert KEEP_ALIVE in quiet.sent and quiet.sent[-2:] == [b"a", b""]
    await busy.serve(pieces(b"a", b"b", b"c"), keep_alive_s=30)
    assert KEEP_ALIVE not in busy.sent


async def test_cancelled_by_the_server() -> None:
    server = Server()
    task = asyncio.create_task(server.serve(pieces(b"a", wait_s=30)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.notes == ["shutting_down", "closed"]
    assert b"shutting_down" in server.sent[0] and server.ended

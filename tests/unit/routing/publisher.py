"""A publisher of KV events as SGLang's: PUB with [topic, number, MessagePack], ROUTER that replays a bounded buffer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


def stored(
    blocks: Sequence[int], tokens: Sequence[Any], parent: int | None = None, salt: str | None = None, **more: Any
) -> dict[str, Any]:
    size = len(tokens) // max(1, len(blocks))
    event = {"type": "BlockStored", "block_hashes": list(blocks), "parent_block_hash": parent, "token_ids": list(tokens),
             "block_size": size, "lora_id": None, "medium": "GPU", "session_id": "ignored"}  # fmt: skip
    return {**event, **({"cache_salt": salt} if salt else {}), **more}


def removed(*blocks: int, medium: str | None = "GPU") -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(blocks), "medium": medium}


CLEARED = {"type": "AllBlocksCleared"}


class Publisher:
    def __init__(self, *, replays: bool = True, buffer: int = 1000, port: int = 0, replay_port: int = 0) -> None:
        self._replays = replays
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._number = 0
        self._time = 1000.0
        self._ports = (port, replay_port)
        self.asked: list[int] = []

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self.port = self._bind(self._pub, self._ports[0])
        self._router = self._context.socket(zmq.ROUTER)
        self.replay_port = self._bind(self._router, self._ports[1])
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    @staticmethod
    def _bind(socket: zmq.asyncio.Socket, port: int) -> int:
        socket.setsockopt(zmq.LINGER, 0)
        if port:
            socket.bind(f"tcp://127.0.0.1:{port}")
            return port
        return int(socket.bind_to_random_port("tcp://127.0.0.1"))

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def replay_endpoint(self) -> str | None:
        return f"tcp://127.0.0.1:{self.replay_port}" if self._replays else None

    async def publish(self, *events: dict[str, Any], lose: bool = False, raw: bytes | None = None) -> None:
        """`lose`: it never leaves the engine, though it can be asked for."""
        self._time += 1
        payload = msgspec.msgpack.encode([self._time, list(events), 0]) if raw is None else raw
        number, self._number = self._number, self._number + 1
        self._buffer.append((number, payload))
        if not lose:
            await self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    def restart(self) -> None:
        """A new process at the same address."""
        self._number = 0
        self._buffer.clear()

    async def _serve(self) -> None:
        while True:
            client, _, start = await self._router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for number, payload in list(self._buffer):
                if number >= first:
                    await self._router.send_multipart([client, b"", b"", number.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", b"", END, b""])

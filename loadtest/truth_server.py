"""A server that knows the truth: answers every chat request on a fixed timetable and logs what it really did.

`python -m loadtest.truth_server --port P [--ttft-ms 200] [--gap-ms 20] [--tokens 50] [--stall-at-s S --stall-s D]`
GET /truth: one row per request, [received_ns, first_sent_ns, last_sent_ns, tokens] on the monotonic clock, which is the
clients' clock too on one machine. DELETE /truth forgets. During a stall it answers nobody, like a real server in trouble.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass
from typing import cast

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Timetable:
    ttft_s: float = 0.2
    gap_s: float = 0.02
    tokens: int = 50
    stall_at_s: float | None = None
    stall_s: float = 0.0
    started: float = 0.0
    """Set by the first request: the stall counts from it."""

    def stalled(self) -> float:
        """Seconds of the stall still to come at this moment; 0 outside it."""
        if self.stall_at_s is None or not self.started:
            return 0.0
        into = time.monotonic() - self.started - self.stall_at_s
        return self.stall_s - into if 0 <= into < self.stall_s else 0.0


def _chunk(text: str) -> bytes:
    data = text.encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(content: str) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    return _chunk("data: " + json.dumps({"id": "t", "object": "chat.completion.chunk", "choices": [choice]}) + "\n\n")


_FINISH = {"id": "t", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}


class _Server(asyncio.Protocol):
    def __init__(self, table: Timetable, truth: list[list[int]]) -> None:
        self.table, self.truth = table, truth
        self.transport: asyncio.Transport
        self.buffer = bytearray()
        self.event = _event("word ")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        at = self.buffer.find(b"\r\n\r\n")
        if at < 0:
            return
        head = bytes(self.buffer[:at]).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
        if len(self.buffer) < at + 4 + length:
            return
        body = bytes(self.buffer[at + 4 : at + 4 + length])
        del self.buffer[: at + 4 + length]
        if head.startswith(b"post"):
            self._chat(body, time.monotonic_ns())
        elif head.startswith(b"get /truth"):
            self._json(json.dumps(self.truth).encode())
        elif head.startswith(b"delete /truth"):
            self.truth.clear()
            self._json(b"{}")
        else:
            self._json(b'{"status": "ok"}')

    def _json(self, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)

    def _chat(self, body: bytes, received: int) -> None:
        prompt = len(body) // 6
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": self.table.tokens,
            "total_tokens": prompt + self.table.tokens,
        }
        if b'"stream":true' not in body.replace(b" ", b""):
            choice = {"index": 0, "message": {"role": "assistant", "content": "word"}, "finish_reason": "stop"}
            self._json(json.dumps({"id": "t", "choices": [choice], "usage": usage}).encode())
            return
        self.table.started = self.table.started or time.monotonic()
        row = [received, 0, 0, self.table.tokens]
        self.transport.write(_HEAD)
        self._later(self.table.ttft_s, received / 1e9, 0, row, usage)

    def _later(self, after: float, since: float, sent: int, row: list[int], usage: dict[str, int]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, since + after - time.monotonic()), self._token, since + after, sent, row, usage)

    def _token(self, planned: float, sent: int, row: list[int], usage: dict[str, int]) -> None:
        wait = self.table.stalled()
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self._token, time.monotonic() + wait, sent, row, usage)
            return
        if self.transport.is_closing():
            return
        self.transport.write(self.event)
        row[2] = time.monotonic_ns()
        row[1] = row[1] or row[2]
        if sent + 1 < row[3]:
            self._later(self.table.gap_s, planned, sent + 1, row, usage)
            return
        tail = _chunk("data: " + json.dumps(_FINISH) + "\n\n") + _chunk(
            "data: " + json.dumps({"id": "t", "choices": [], "usage": usage}) + "\n\n"
        )
        self.transport.write(tail + _chunk("data: [DONE]\n\n") + b"0\r\n\r\n")
        self.truth.append(row)


async def serve(port: int, table: Timetable) -> asyncio.Server:
    """The listening server; port 0 picks a free one."""
    truth: list[list[int]] = []
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: _Server(table, truth), "127.0.0.1", port, backlog=4096)


async def _forever(port: int, table: Timetable) -> None:
    server = await serve(port, table)
    print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)  # noqa: T201 - its one line
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--gap-ms", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--stall-at-s", type=float)
    parser.add_argument("--stall-s", type=float, default=0)
    a = parser.parse_args()
    table = Timetable(a.ttft_ms / 1e3, a.gap_ms / 1e3, a.tokens, a.stall_at_s, a.stall_s)
    try:
        import uvloop
    except ImportError:
        asyncio.run(_forever(a.port, table))
    else:
        uvloop.run(_forever(a.port, table))


if __name__ == "__main__":
    main()

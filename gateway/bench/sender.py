"""Sends requests that are much work to a server: what arrives while `catalejo bench gateway` watches other streams.

A process of its own that runs only when its core has nothing else to do: on two cores it shares one with the load and the
engine, whose clocks it must not delay. Every picture is another one, so that none is known already. Prints `ready`, waits
for a line, sends for `--seconds`, prints how many were answered."""

from __future__ import annotations

import argparse
import base64
import os
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any, Final

import numpy as np
import orjson

from gateway.bench.engine import BURST_TOKENS
from gateway.bench.load import CHAT, chat_body, head_of

COMPLETIONS: Final = "/v1/completions"
MARK: Final = b"@@@@@@@@@@@@"
"""Stands in a body where each request has its own number."""
Buffers = tuple[bytes, bytes]


def images(megabytes: float) -> tuple[str, bytes, bytes]:
    """(path, body before the number, body after it): a PNG of noise, which does not compress, as a data URL; the number is
    that of a text chunk in front of the pixels."""
    side = int((megabytes * 1e6 * 0.75 / 3) ** 0.5)
    rows = b"".join(b"\0" + os.urandom(side * 3) for _ in range(side))
    header = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0))
    pixels = _chunk(b"IDAT", zlib.compress(rows, 0)) + _chunk(b"IEND", b"")
    url = b"data:image/png;base64," + base64.b64encode(header) + MARK + base64.b64encode(pixels)
    return CHAT, *_around(_chat([{"type": "image_url", "image_url": {"url": url.decode()}}]))


def number_chunk(number: int) -> bytes:
    """Base64 of a PNG text chunk; header, chunk and pixels are each whole groups of three bytes, so that they can be joined."""
    return base64.b64encode(_chunk(b"tEXt", b"n\0%013d" % number))


def text(megabytes: float) -> tuple[str, bytes, bytes]:
    """A chat message of words, with an escape in every line."""
    line = "The quick brown fox jumps over the lazy dog; " + "\n"
    return CHAT, *_around(_chat(MARK.decode() + line * int(megabytes * 1e6 / (len(line) + 1))))


def ids(megabytes: float) -> tuple[str, bytes, bytes]:
    """A prompt of token ids."""
    prompt = np.random.default_rng(0).integers(100, 400, int(megabytes * 1e6 / 4)).tolist()
    body = {"model": "tiny", "max_tokens": 1, "user": MARK.decode(), "prompt": prompt}
    return COMPLETIONS, *_around(orjson.dumps(body))


def plain_number(number: int) -> bytes:
    return b"%012d" % number


def bursts(megabytes: float) -> tuple[str, bytes, bytes]:
    """A stream whose tokens the engine sends all at once."""
    return CHAT, *_around(orjson.dumps(chat_body(BURST_TOKENS, stream=True, content=MARK.decode())))


@dataclass(frozen=True)
class Kind:
    """make    megabytes -> path, body before the number, body after it
    number     how it is written
    statuses   which are an answer: a prompt may be longer than the context, it was read all the same
    at_once    how many are sent together
    """

    make: Callable[[float], tuple[str, bytes, bytes]]
    number: Callable[[int], bytes] = plain_number
    statuses: tuple[int, ...] = (200,)
    at_once: int = 1


KINDS: Final = {
    "images": Kind(images, number_chunk),
    "text": Kind(text, statuses=(200, 400)),
    "ids": Kind(ids, statuses=(200, 400)),
    "bursts": Kind(bursts, at_once=10),
}


def _chat(content: Any) -> bytes:
    return orjson.dumps(chat_body(1, stream=False, content=content))


def _around(body: bytes) -> Buffers:
    before, _, after = body.partition(MARK)
    return before, after


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def send(port: int, kind: Kind, megabytes: float, seconds: float) -> int:
    """How many requests were answered. Raises SystemExit for an answer that is none."""
    path, before, after = kind.make(megabytes)

    def one(number: int) -> None:
        written = kind.number(number)
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(head_of(port, path, len(before) + len(written) + len(after)))
            for buffer in (before, written, after):
                s.sendall(buffer)
            answer = HTTPResponse(s)
            answer.begin()
            said = answer.read()  # by its length or chunks: an engine behind the relay keeps the connection
            if answer.status not in kind.statuses:
                raise SystemExit(f"catalejo bench: a large request was refused: {answer.status} {said[:500]!r}")

    print("ready", flush=True)
    sys.stdin.readline()
    until, sent = time.monotonic() + seconds, 0
    with ThreadPoolExecutor(kind.at_once) as pool:
        while time.monotonic() < until:
            list(pool.map(one, range(sent, sent + kind.at_once)))
            sent += kind.at_once
    return sent


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print(send(options.port, KINDS[options.kind], options.megabytes, options.seconds))

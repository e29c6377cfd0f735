"""An engine that costs next to nothing: streams one token per event at a fixed rate, on the contract's route and, for
peers that speak it, as OpenAI chat chunks.

The number of tokens and the rate come with the prompt's first max_new_tokens / max_tokens: a request for 1 token is
answered at once; one for BURST_TOKENS on the contract's route too, as by an engine that was stuck. Streams tick in PHASES
groups, so that events do not all arrive together."""

from __future__ import annotations

import argparse
import asyncio
import re
from typing import Final

import uvloop

from engine.wire import ROUTE
from gateway.bench.http import LAST_CHUNK, RequestProtocol, chunk, response

PHASES: Final = 20
BURST_TOKENS: Final = 20_000
MAX_NEW: Final = re.compile(rb'"(?:max_new_tokens|max_tokens)": ?(\d+)')
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE: Final = b'"usage":{"prompt_tokens":1,"completion_tokens":%d,"cached_tokens":0}'
OPENAI: Final = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}\n\n'
)
OPENAI_END: Final = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[{"index":0,'
    b'"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
)
OPENAI_WHOLE: Final = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"word"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,'
    b'"completion_tokens":1,"total_tokens":2}}'
)
INFO: Final = (
    b'{"object":"list","data":[{"id":"tiny","object":"model"}],"context_length":%d,"model_path":"tiny",'
    b'"served_model_name":"tiny","is_generation":true,"catalejo":{"version":1}}'
)
"""Answers every GET: health, model_info, and the peers' questions after models."""
IDS: Final = tuple(range(65, 91))


def lines(number: int, total: int) -> bytes:
    """The reply's `number`-th token, with the end behind the last."""
    data = b'{"index":0,"output_ids":[%d]}\n' % IDS[number % len(IDS)]
    if number == total:
        data += b'{"index":0,"finish":{"type":"length","matched":null},%s}\n{"done":true}\n' % (USAGE % total)
    return data


BURST: Final = b"".join(chunk(lines(n + 1, BURST_TOKENS)) for n in range(BURST_TOKENS)) + LAST_CHUNK


class Clock:
    """Writes one event to every stream of a phase, phase after phase."""

    def __init__(self, rate: float) -> None:
        self._period = 1 / rate
        self._groups: list[set[Stream]] = [set() for _ in range(PHASES)]
        self._next = 0

    def add(self, stream: Stream) -> None:
        self._groups[self._next % PHASES].add(stream)
        self._next += 1

    def drop(self, stream: Stream) -> None:
        for group in self._groups:
            group.discard(stream)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due, phase = loop.time(), 0
        while True:
            due += self._period / PHASES
            await asyncio.sleep(max(0.0, due - loop.time()))
            for stream in list(self._groups[phase]):
                stream.tick()
            phase = (phase + 1) % PHASES


class Stream(RequestProtocol):
    def __init__(self, clock: Clock, context: int) -> None:
        super().__init__()
        self._clock = clock
        self._info = response(INFO % context)
        self._left = 0
        self._total = 0
        self._openai = False

    def on_request(self, path: str, body: bytes) -> None:
        found = MAX_NEW.search(body[:65536])
        self._total = self._left = int(found[1]) if found else 1
        if path == ROUTE:
            self._openai = False
        elif path == "/v1/chat/completions":
            self._openai = True
            if b'"stream":true' not in body and b'"stream": true' not in body:
                self.transport.write(response(OPENAI_WHOLE))
                return
        else:
            self.transport.write(self._info)
            return
        kind = b"text/event-stream" if self._openai else b"application/x-ndjson"
        self.transport.write(HEAD % kind)
        if self._total == 1:
            self.tick()
        elif self._total == BURST_TOKENS and not self._openai:
            self.transport.write(BURST)
        elif self._total < 1_000_000:  # above: an idle stream, for measuring memory
            self._clock.add(self)

    def tick(self) -> None:
        self._left -= 1
        openai = OPENAI + (b"" if self._left else OPENAI_END)
        data = openai if self._openai else lines(self._total - self._left, self._total)
        self.transport.write(chunk(data) + (b"" if self._left else LAST_CHUNK))
        if not self._left:
            self._clock.drop(self)

    def on_lost(self) -> None:
        self._clock.drop(self)


async def serve(port: int, rate: float, context: int) -> None:
    loop = asyncio.get_running_loop()
    clock = Clock(rate)
    await loop.create_server(lambda: Stream(clock, context), "127.0.0.1", port, backlog=4096)
    await clock.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--context", type=int, default=131072, help="Context length to report.")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.rate, options.context))

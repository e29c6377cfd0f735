"""For any answer, cut anywhere into pieces and reads: the stream, put together as a client does, is the plain answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.wire import Done, Finish, Reply, Tokens, Usage
from gateway.api.chat.message import whole_answer
from gateway.api.chat.stream import ChunkStyle, ChunkWriter
from gateway.api.context import RequestContext
from gateway.api.generation.logprobs import TokenTexts
from gateway.api.generation.run import Opened, Run, Update
from gateway.api.sse import Client
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.observability.tracing import NO_SPAN
from gateway.parsing import OutputParser, ToolSpec
from gateway.prompt import Checkpoint
from tests.api.harness import TINY
from tests.api.m3 import calls, invoke

CHECKPOINT = Checkpoint.load(TINY)
TEXTS = TokenTexts(CHECKPOINT)
METRICS = Metrics()
TOOLS = [ToolSpec("f", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}})]
WORDS = [
    "Hello",
    " ",
    "猫",
    "é",
    "\n",
    "<",
    "</mm:think>",
    "<mm:think>",
    "STOP",
    "ST",
    '"',
    "\\",
    "]<]minimax[>[",
    "{}",
]


class Stream:
    """Stands where the engine's stream stands."""

    class client:
        name = "fake"

        @staticmethod
        async def abort(rid: str, reason: str) -> None: ...

    rid = "r"
    finished = False
    tokens_seen = False
    span = NO_SPAN

    def __init__(self, reads: list[list[Reply]]) -> None:
        self._reads = iter(reads)

    async def deliver(self, take: Callable[[list[Reply]], bool]) -> bool:
        for replies in self._reads:
            self.finished = isinstance(replies[-1], Done)
            if not take(replies) and not self.finished:
                return False
        return True

    def succeeded(self) -> None: ...

    def broke(self) -> None: ...

    def close(self) -> None: ...


def run_of(reads: list[list[Reply]], stop: tuple[str, ...], thinking: bool, choices: int) -> Run:
    parsers = [
        OutputParser(CHECKPOINT, starts_in_reasoning=thinking, tools=TOOLS, stop=stop, call_id_factory=lambda: "call_x")
        for _ in range(choices)
    ]

    async def nowhere(opened: Opened, failed: str, why: ApiError) -> Opened:
        raise why

    opened = Opened(Stream(reads), parsers, np.zeros(9, np.uint32), "tiny", "tiny", TEXTS, nowhere)  # type: ignore[arg-type]
    return Run(opened, RequestContext("r"), METRICS, 0.1)


def name(update: Update, saw_call: bool) -> str:
    return "tool_calls" if saw_call and update.finish == "stop" else str(update.finish)


STYLE = ChunkStyle(
    {"id": "x"}, ("reasoning_content",), name, lambda rows: TEXTS.chat_rows(rows, 1), True, True, 1 << 30
)


class Written:
    """A connection of a client that is slow now and then."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> bool:
        self.pieces.append(data)
        return len(self.pieces) % 3 > 0

    async def drain(self) -> None: ...


async def streamed(run: Run, choices: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    written = Written()
    client = Client(written, 60.0, 60.0)
    await ChunkWriter(STYLE, choices).write(run, client)
    client.close()
    raw = b"".join(written.pieces)
    events = raw.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(e.removeprefix("data: ")) for e in events[:-2]]
    out = []
    for index in range(choices):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        deltas = [c["delta"] for c in mine]
        assert deltas[0]["role"] == "assistant" and not any("role" in d for d in deltas[1:])
        finishes = [c["finish_reason"] for c in mine]
        assert finishes[-1] and not any(finishes[:-1])
        calls_: list[dict[str, Any]] = []
        for piece in (p for d in deltas for p in d.get("tool_calls", [])):
            if piece["index"] == len(calls_):
                calls_.append({"id": piece["id"], "type": piece["type"], "function": {"name": "", "arguments": ""}})
            for key, value in piece["function"].items():
                calls_[piece["index"]]["function"][key] += value
        out.append(
            {
                "content": "".join(d.get("content") or "" for d in deltas),
                "reasoning": "".join(d.get("reasoning_content") or "" for d in deltas),
                "calls": calls_,
                "finish": finishes[-1],
                "rows": [r for c in mine if c["logprobs"] for r in c["logprobs"]["content"]],
            }
        )
    return out, chunks[-1]["usage"]


def plain_view(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": message.get("tool_calls", []),
        "finish": choice["finish_reason"],
        "rows": choice["logprobs"]["content"],
    }


CALL = calls(invoke("f", a="1", b="x < y"), invoke("f", b=""))
ANSWERS = st.lists(st.sampled_from([*WORDS, CALL]), max_size=12).map("".join)


@given(
    texts=st.lists(ANSWERS, min_size=1, max_size=2),
    stop=st.sampled_from([(), ("STOP",), ("STOP", "lo")]),
    thinking=st.booleans(),
    length=st.booleans(),
    data=st.data(),
)
@settings(max_examples=150)
def test_stream_equals_plain(
    texts: list[str], stop: tuple[str, ...], thinking: bool, length: bool, data: st.DataObject
) -> None:
    replies: list[Reply] = []
    for index, text in enumerate(texts):
        ids = CHECKPOINT.tokenizer.encode(text, add_special_tokens=False).ids
        at = 0
        while at < len(ids):
            size = data.draw(st.integers(1, 5))
            piece = ids[at : at + size]
            replies.append(Tokens(index, piece, [(-0.5, i, [(-0.5, i)]) for i in piece], 0))
            at += size
        usage = Usage(9, len(ids), 0)
        replies.append(Finish(index, "length" if length else "stop", usage))
    replies.append(Done())
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(replies) - 1)), max_size=6)) | {len(replies)})
    reads = [replies[a:b] for a, b in zip([0, *cuts], cuts, strict=False) if replies[a:b]]

    async def both() -> None:
        got, usage = await streamed(run_of(reads, stop, thinking, len(texts)), len(texts))
        whole = orjson.loads(orjson.dumps(await whole_answer(run_of([replies], stop, thinking, len(texts)), STYLE)))
        assert got == [plain_view(c) for c in whole["choices"]]
        assert usage == whole["usage"]
        assert sum(len(c["rows"]) for c in got) == usage["completion_tokens"]
        for choice in got:
            for call in choice["calls"]:
                if choice["finish"] != "length":
                    json.loads(call["function"]["arguments"])

    asyncio.run(both())


def test_logprobs_of_a_plain_answer_are_written_as_they_come() -> None:
    """Symptom: 20,000 tokens with alternatives were written in one go, and all streams stood still for half a second."""
    reads: list[list[Reply]] = [[Tokens(0, [97, 98], [(-0.5, 97, []), (-0.25, 98, [])])] for _ in range(50)]
    reads.append([Finish(0, "stop", Usage(9, 100, 0)), Done()])
    sizes: list[int] = []

    def rows(given: Any) -> list[dict[str, Any]]:
        sizes.append(len(given))
        return TEXTS.chat_rows(given, 0)

    whole = asyncio.run(whole_answer(run_of(reads, (), False, 1), replace(STYLE, rows=rows)))
    written = orjson.loads(orjson.dumps(whole))["choices"][0]["logprobs"]
    assert [r["logprob"] for r in written["content"]] == [-0.5, -0.25] * 50
    assert max(sizes) == 2

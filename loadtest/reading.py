"""From raw bytes and read stamps to what happened: HTTP de-framing, SSE events, each with the stamp of the read that
completed it. Runs after the measurement, never during it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadtest.spool import Plan
from loadtest.wire_client import Exchange


@dataclass(slots=True)
class Sample:
    """One request, read. Times in seconds; `chunks` are the stamps of content-bearing events, relative to `due`.

    error         "" or a class: connect, reset, eof, timeout, http_429, http_5xx, stream_error, no_usage, truncated
    prompt_tokens, output_tokens, cached_tokens   the server's own count (usage); None when it gave none
    """

    plan: Plan
    due: float
    send_lag: float
    end: float
    chunks: list[float] = field(default_factory=list)
    text: str = ""
    error: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str | None = None
    reused: bool = False

    @property
    def ok(self) -> bool:
        return not self.error


def sample(plan: Plan, exchange: Exchange, *, keep_text: bool = False) -> Sample:
    out = Sample(
        plan,
        due=exchange.due / 1e9,
        send_lag=(exchange.sent - exchange.due) / 1e9,
        end=(exchange.end - exchange.due) / 1e9,
        error=exchange.error,
        reused=exchange.reused,
    )
    raw = bytes(exchange.raw)
    at = raw.find(b"\r\n\r\n")
    if at < 0:
        out.error = out.error or "truncated"
        return out
    status = int(raw[9:12]) if raw[9:12].isdigit() else 0
    chunked = b"transfer-encoding: chunked" in raw[:at].lower()
    if status != 200:
        out.error = out.error or (
            f"http_{status}" if status in (400, 401, 404, 413, 429, 503) else f"http_{status // 100}xx"
        )
        return out
    body = _dechunk(raw, at + 4) if chunked else [(raw[at + 4 :], len(raw))]
    texts: list[str] = []
    done = False
    for event, position in _events(body):
        if event == b"[DONE]":
            done = True
            continue
        _read_event(out, event, exchange, position, texts, keep_text)
    out.text = "".join(texts)
    if not out.error and not done:
        out.error = "truncated"
    if not out.error and out.output_tokens is None:
        out.error = "no_usage"
    return out


def _read_event(
    out: Sample, event: bytes, exchange: Exchange, position: int, texts: list[str], keep_text: bool
) -> None:
    try:
        body: Any = orjson.loads(event)
    except orjson.JSONDecodeError:
        out.error = out.error or "bad_json"
        return
    if "error" in body:
        out.error = "stream_error"
        return
    usage = body.get("usage")
    if usage:
        out.prompt_tokens = usage.get("prompt_tokens")
        out.output_tokens = usage.get("completion_tokens")
        out.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    for choice in body.get("choices") or ():
        out.finish = choice.get("finish_reason") or out.finish
        delta = choice.get("delta") or {}
        content = delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if content or reasoning or delta.get("tool_calls"):
            stamp = exchange.stamps[min(bisect_left(exchange.ends, position), len(exchange.stamps) - 1)]
            out.chunks.append((stamp - exchange.due) / 1e9)
            if keep_text:
                texts.append(content)


def _dechunk(raw: bytes, at: int) -> list[tuple[bytes, int]]:
    """(data, position of its last byte in `raw`) per HTTP chunk; stops quietly where the bytes end."""
    out: list[tuple[bytes, int]] = []
    while True:
        line = raw.find(b"\r\n", at)
        if line < 0:
            return out
        try:
            size = int(raw[at:line].split(b";")[0], 16)
        except ValueError:
            return out
        if size == 0:
            return out
        data = raw[line + 2 : line + 2 + size]
        out.append((data, line + 2 + len(data)))
        if len(data) < size:
            return out
        at = line + 2 + size + 2


def _events(body: list[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """(data of one SSE event, position in raw where it was complete)."""
    held = b""
    for data, end in body:
        text = held + data
        start = 0
        while (at := text.find(b"\n\n", start)) >= 0:
            complete = end - (len(text) - (at + 2))
            for line in text[start:at].split(b"\n"):
                if line.startswith(b"data:"):
                    yield line[5:].strip(), complete
            start = at + 2
        held = text[start:]

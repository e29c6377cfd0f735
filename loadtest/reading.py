"""From raw bytes and read stamps to what happened: HTTP de-framing, SSE events, each with the stamp of the read that
completed it. Runs after the measurement, never during it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadtest.spool import Plan
from loadtest.wire_client import CHUNKED, Exchange

MOST_TOKENS = 1 << 40
"""A count above this in `usage` is no count."""


@dataclass(slots=True)
class Sample:
    """One request, read. Times in seconds; `chunks` are the stamps of content-bearing events, relative to `due`.

    error         "" or a class: connect, reset, eof, timeout, too_long, cancelled, http_429, http_5xx, stream_error,
                  bad_json, bad_event, bad_usage, no_usage, truncated
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
    chunked = CHUNKED.search(raw, 0, at + 2) is not None
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
    if not isinstance(body, dict):
        out.error = out.error or "bad_event"
        return
    if body.get("error"):
        out.error = "stream_error"
        return
    if usage := body.get("usage"):
        _read_usage(out, usage)
    for choice in _dicts(body.get("choices")):
        finish = choice.get("finish_reason")
        out.finish = finish if isinstance(finish, str) else out.finish
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            continue
        content = delta.get("content")
        if content or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls"):
            stamp = exchange.stamps[min(bisect_left(exchange.ends, position), len(exchange.stamps) - 1)]
            out.chunks.append((stamp - exchange.due) / 1e9)
            if keep_text and isinstance(content, str):
                texts.append(content)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _read_usage(out: Sample, usage: Any) -> None:
    """The last usage counts; one that is not made of token counts is an error, or it would spoil every sum."""
    if not isinstance(usage, dict):
        out.error = out.error or "bad_usage"
        return
    details = usage.get("prompt_tokens_details")
    counts = (
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        details.get("cached_tokens") if isinstance(details, dict) else None,
    )
    if any(c is not None and (type(c) is not int or not 0 <= c <= MOST_TOKENS) for c in counts):
        out.error = out.error or "bad_usage"
        return
    out.prompt_tokens, out.output_tokens, out.cached_tokens = counts


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
    """(data of one SSE event, position in raw where it was complete). Lines end in LF or CRLF; a blank one ends the event."""
    held = b""
    data: list[bytes] = []
    for piece, end in body:
        text = held + piece
        start = 0
        while (at := text.find(b"\n", start)) >= 0:
            line = text[start:at].removesuffix(b"\r")
            start = at + 1
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data), end - (len(text) - start)
                data.clear()
        held = text[start:]

"""What `GET /log` shows, as JSON lines in order of arrival:

{"event": "request", "t", "rid", "route", "status", "ids", "text", "items": [{modality, hash, grid, ranges, rows, t_dup,
   shape, sent}], "sampling", "n", "logprobs", "grammar", "cache_salt", "priority", "traceparent", "headers", ...}
{"event": "refused", "t", "route", "status", "error", "headers"}          not a valid request at all
{"event": "abort", "t", "rid", "phase": "prefill" | "decode", "reason": "disconnect" | "abort_request", "sent_tokens"}

`t` is seconds on the mock's own monotonic clock. A request answered 409 or with a scripted status is a "request" with
that status. The value of an Authorization header is never recorded: it shows as "present"."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson

from engine.wire import GenerateRequest
from tests.mock_engine.checkpoint import MockCheckpoint

KEPT_EVENTS = 20_000


def plain_headers(headers: Mapping[str, str]) -> dict[str, str]:
    lowered = {k.lower(): v for k, v in headers.items()}
    return {k: "present" if k == "authorization" else v for k, v in lowered.items()}


class Recorder:
    def __init__(self, checkpoint: MockCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)

    def request(
        self, request: GenerateRequest, route: str, status: int, headers: Mapping[str, str], **more: Any
    ) -> dict[str, Any]:
        """Ids are decoded when the log is read, so that recording costs little."""
        grammar = request.grammar
        event: dict[str, Any] = {
            "event": "request",
            "t": time.monotonic(),
            "rid": request.rid,
            "route": route,
            "status": status,
            "ids": request.input_ids.copy(),
            "items": [
                {
                    "modality": i.modality,
                    "hash": i.hash,
                    "grid": list(i.grid),
                    "ranges": [list(r) for r in i.ranges],
                    "rows": i.rows,
                    "t_dup": i.t_dup,
                    "shape": list(i.shape),
                    "sent": i.data is not None,
                }
                for i in request.items
            ],
            "sampling": dict(request.sampling),
            "n": request.n,
            "logprobs": request.logprobs,
            "grammar": grammar and {"type": grammar.type, "value": grammar.value, "after_ids": grammar.after_ids},
            "cache_salt": request.cache_salt,
            "priority": request.priority,
            "traceparent": request.traceparent,
            "require": list(request.require),
            "headers": plain_headers(headers),
            **more,
        }
        self._events.append(event)
        return event

    def refused(self, route: str, status: int, error: Any, headers: Mapping[str, str]) -> None:
        self._add("refused", route=route, status=status, error=error, headers=plain_headers(headers))

    def abort(self, rid: str, phase: str, reason: str, sent_tokens: int) -> None:
        self._add("abort", rid=rid, phase=phase, reason=reason, sent_tokens=sent_tokens)

    def _add(self, event: str, **fields: Any) -> None:
        self._events.append({"event": event, "t": time.monotonic(), **fields})

    def read(self, event: str | None = None) -> list[dict[str, Any]]:
        out = []
        for entry in self._events:
            if event is not None and entry["event"] != event:
                continue
            if entry["event"] == "request":
                ids = entry["ids"].tolist()
                entry = {**entry, "ids": ids, "text": self._checkpoint.decode(ids)}
            out.append(entry)
        return out

    def lines(self, event: str | None = None) -> bytes:
        return b"".join(orjson.dumps(e) + b"\n" for e in self.read(event))

    def clear(self) -> None:
        self._events.clear()

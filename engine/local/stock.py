"""SGLang's own `POST /generate`, the part with `input_ids`: JSON in, one JSON answer or server-sent events out.

Streams are cumulative unless the request sets `incremental_stream_output` (or `stream_output`, its older name).
Fields that would change the answer and are not supported are refused by name; `text` in the answers is empty, ids are
what counts.
"""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import orjson

from engine import wire

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
DETOKENIZER = frozenset({"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"})
"""Sampling parameters that only concern text."""
FIELDS = frozenset(
    "input_ids sampling_params stream rid return_logprob top_logprobs_num logprob_start_len priority extra_key "
    "cache_salt incremental_stream_output stream_output return_text_in_logprobs log_metrics routing_key".split()
)


def parse(body: bytes) -> tuple[wire.GenerateRequest, bool, bool]:
    """(request, stream, incremental). Raises wire.WireError naming the field."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise wire.BadHeader(f"body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise wire.BadHeader("body must be an object")
    for name, value in fields.items():
        if name not in FIELDS and value is not None:
            raise wire.BadHeader(f"{name} is not supported here; send input_ids", param=name)
    ids = fields.get("input_ids")
    if not isinstance(ids, list) or not ids or not all(_is_id(i) for i in ids):
        raise wire.BadHeader("input_ids must be a non-empty list of token ids", param="input_ids")
    sampling = fields.get("sampling_params")
    if sampling is not None and not isinstance(sampling, dict):
        raise wire.BadHeader("sampling_params must be an object", param="sampling_params")
    sampling = {k: v for k, v in (sampling or {}).items() if v is not None and k not in DETOKENIZER}
    n = sampling.pop("n", 1)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= wire.MAX_N:
        raise wire.BadSampling(f"n must be an integer in [1, {wire.MAX_N}]", param="sampling_params.n")
    if not sampling.get("stop", True):
        del sampling["stop"]  # an empty list
    constraints = [wire.Grammar(k, sampling.pop(k)) for k in GRAMMARS if k in sampling]  # type: ignore[arg-type]
    if len(constraints) > 1 or not all(isinstance(g.value, str) for g in constraints):
        raise wire.BadSampling(f"at most one of {', '.join(GRAMMARS)}, as a string", param="sampling_params")
    request = wire.GenerateRequest(
        rid=_of(fields, "rid", str, None) or uuid.uuid4().hex,
        input_ids=np.array(ids, dtype=np.uint32),
        sampling=wire.check_sampling(sampling),
        n=n,
        logprobs=_of(fields, "top_logprobs_num", int, 0) if fields.get("return_logprob") else None,
        grammar=constraints[0] if constraints else None,
        cache_salt=_of(fields, "extra_key", str, None) or _of(fields, "cache_salt", str, None),
        priority=_of(fields, "priority", int, 0),
    )
    incremental = bool(fields.get("incremental_stream_output") or fields.get("stream_output"))
    return request, bool(fields.get("stream")), incremental


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _of(fields: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise wire.BadHeader(f"{name} must be {kind.__name__}", param=name)
    return value


class Answer:
    """Collects replies and shows them as SGLang does."""

    def __init__(self, request: wire.GenerateRequest, incremental: bool = False) -> None:
        self._request = request
        self._incremental = incremental
        self._ids: list[list[int]] = [[] for _ in range(request.n)]
        self._rows: list[list[wire.LogprobRow]] = [[] for _ in range(request.n)]
        self._said = [0] * request.n
        self._cached = 0
        self._finish: list[wire.Finish | None] = [None] * request.n
        self.failure: wire.Failure | None = None

    def take(self, reply: wire.Reply) -> int | None:
        """Returns the choice it is about."""
        match reply:
            case wire.Tokens(index, ids, rows, cached):
                self._ids[index] += ids
                self._rows[index] += rows or []
                self._cached = self._cached if cached is None else cached
                return index
            case wire.Finish(index=index, usage=usage):
                self._finish[index] = reply
                self._cached = usage.cached_tokens
                return index
            case wire.Failure():
                self.failure = reply
        return None

    def show(self, index: int) -> dict[str, Any]:
        start = self._said[index] if self._incremental else 0
        ids, rows = self._ids[index], self._rows[index][start:]
        self._said[index] = len(ids)
        several = self._request.n > 1
        meta: dict[str, Any] = {
            "id": f"{self._request.rid}_{index}" if several else self._request.rid,
            "finish_reason": _finish_reason(self._finish[index], len(ids)),
            "prompt_tokens": len(self._request.input_ids),
            "completion_tokens": len(ids),
            "cached_tokens": self._cached,
        }
        if self._request.logprobs is not None:
            meta["output_token_logprobs"] = [[lp, i, None] for lp, i, _ in rows]
            if self._request.logprobs:
                meta["output_top_logprobs"] = [[[lp, i, None] for lp, i in top] for _, _, top in rows]
        body = {"text": "", "output_ids": ids[start:], "meta_info": meta}
        return body | {"index": index} if several else body

    def whole(self) -> dict[str, Any] | list[dict[str, Any]]:
        self._incremental = False
        shown = [self.show(i) for i in range(self._request.n)]
        return shown if self._request.n > 1 else shown[0]


def _finish_reason(finish: wire.Finish | None, length: int) -> dict[str, Any] | None:
    if finish is None:
        return None
    extra = {"stop": {"matched": finish.matched}, "length": {"length": length}, "abort": {"message": "aborted"}}
    return {"type": finish.type, **extra[finish.type]}


class Sse:
    """A stream of `data:` events."""

    media_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def encode(self, reply: wire.Reply) -> bytes:
        index = self._answer.take(reply)
        if isinstance(reply, wire.Failure):
            body: Any = {"error": {"message": reply.message, "code": reply.code}}
        elif index is None:
            return b"data: [DONE]\n\n"
        else:
            body = self._answer.show(index)
        return b"data: " + orjson.dumps(body) + b"\n\n"

"""POST /generate as a stock SGLang server answers it: `input_ids` or `text`, JSON or SSE, no media.

Streams are cumulative (`output_ids`, `text` and logprob lists hold everything so far) unless the request sets
`incremental_stream_output` (older name: `stream_output`) or the server was started with incremental output.
With `n` > 1 the answer is a list, or events carry `index`."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import numpy as np
import orjson
from aiohttp import web

from engine import wire
from tests.mock_engine.answering import Plan, plan
from tests.mock_engine.contract import scripted_status
from tests.mock_engine.script import Answer
from tests.mock_engine.state import State
from tests.mock_engine.streaming import Running, fault_before_headers, say

KNOWN_FIELDS = frozenset(
    {
        "text", "input_ids", "sampling_params", "stream", "rid", "return_logprob", "logprob_start_len",
        "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs", "log_metrics", "priority", "extra_key",
        "cache_salt", "routing_key", "data_parallel_rank",
        "incremental_stream_output", "stream_output", "custom_labels", "background", "received_time",
    }
)  # fmt: skip
SGLANG_SAMPLING = frozenset(
    {
        "n", "stop", "stop_regex", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim",
        "json_schema", "regex", "ebnf", "structural_tag", "custom_params", "stream_interval",
    }
)  # fmt: skip


def _bad(message: str) -> wire.WireError:
    return wire.BadHeader(message)


def _parse(body: bytes, state: State) -> tuple[wire.GenerateRequest, dict[str, Any]]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as e:
        raise _bad(f"body is not JSON: {e}") from None
    if not isinstance(fields, dict):
        raise _bad("body must be an object")
    if fields.get("image_data") or fields.get("video_data"):
        raise _bad("this server takes no media over /generate")
    if unknown := sorted(set(fields) - KNOWN_FIELDS - {"image_data", "video_data"}):
        raise _bad(f"unknown field `{unknown[0]}`")
    ids = fields.get("input_ids")
    if ids is None and isinstance(fields.get("text"), str):
        ids = state.checkpoint.encode(fields["text"])
    if not isinstance(ids, list) or not ids or not all(isinstance(v, int) and 0 <= v < 1 << 32 for v in ids):
        raise _bad("input_ids must be a list of token ids")
    sampling = fields.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise _bad("sampling_params must be an object")
    sampling = dict(sampling)
    extra = {k: sampling.pop(k) for k in list(sampling) if k in SGLANG_SAMPLING}
    grammar = next((k for k in ("json_schema", "regex", "ebnf", "structural_tag") if extra.get(k) is not None), None)
    request = wire.GenerateRequest(
        rid=str(fields.get("rid") or uuid.uuid4().hex),
        input_ids=np.asarray(ids, dtype=np.uint32),
        sampling=wire.check_sampling({"max_new_tokens": 128, **sampling}),
        n=int(extra.get("n") or 1),
        logprobs=int(fields.get("top_logprobs_num") or 0) if fields.get("return_logprob") else None,
        grammar=wire.Grammar(grammar, str(extra[grammar])) if grammar else None,  # type: ignore[arg-type]
        cache_salt=fields.get("extra_key") or fields.get("cache_salt"),
        priority=int(fields.get("priority") or 0),
    )
    return request, fields


class SseDialect:
    content_type = "text/event-stream"
    keep_alive = b""

    def __init__(self, request: wire.GenerateRequest, cached: int, state: State, incremental: bool) -> None:
        self._request, self._cached, self._state, self._incremental = request, cached, state, incremental
        self._ids: list[list[int]] = [[] for _ in range(request.n)]
        self._rows: list[list[wire.LogprobRow]] = [[] for _ in range(request.n)]
        self._said = [0] * request.n

    def body(self, index: int, finish: dict[str, Any] | None) -> dict[str, Any]:
        start = self._said[index] if self._incremental else 0
        self._said[index] = len(self._ids[index])
        ids, rows = self._ids[index][start:], self._rows[index][start:]
        meta: dict[str, Any] = {
            "id": self._request.rid if self._request.n == 1 else f"{self._request.rid}_{index}",
            "finish_reason": finish,
            "prompt_tokens": len(self._request.input_ids),
            "completion_tokens": len(self._ids[index]),
            "cached_tokens": self._cached,
            "weight_version": "default",
        }
        if self._request.logprobs is not None:
            meta["output_token_logprobs"] = [[lp, token, None] for lp, token, _ in rows]
            if self._request.logprobs:
                meta["output_top_logprobs"] = [[[lp, token, None] for lp, token in top] for _, _, top in rows]
        stop = self._state.checkpoint.eos_ids
        text = self._state.checkpoint.decode([i for i in ids if i not in stop])
        return {"text": text, "output_ids": ids, "meta_info": meta}

    def add(self, index: int, ids: list[int], rows: list[wire.LogprobRow] | None) -> None:
        self._ids[index] += ids
        self._rows[index] += rows or []

    def _event(self, index: int, finish: dict[str, Any] | None) -> bytes:
        body = self.body(index, finish)
        if self._request.n > 1:
            body["index"] = index
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def tokens(self, index: int, ids: list[int], rows: list[wire.LogprobRow] | None) -> bytes:
        self.add(index, ids, rows)
        return self._event(index, None)

    def finish(self, index: int, kind: str, matched: int | None) -> bytes:
        return self._event(index, finish_reason(kind, matched, len(self._ids[index])))

    def done(self) -> bytes:
        return b"data: [DONE]\n\n"

    def failure(self, code: str, message: str, retryable: bool) -> bytes:
        return b"data: " + orjson.dumps({"error": {"message": message, "code": code}}) + b"\n\n"


def finish_reason(kind: str, matched: int | None, length: int) -> dict[str, Any]:
    if kind == "length":
        return {"type": "length", "length": length}
    if kind == "abort":
        return {"type": "abort", "message": "Aborted by the client"}
    return {"type": "stop", "matched": matched}


async def generate(request: web.Request) -> web.StreamResponse:
    state = State.of(request)
    try:
        decoded, fields = _parse(await request.read(), state)
    except wire.WireError as e:
        state.recorder.refused("generate", 400, {"message": e.message}, request.headers)
        return web.json_response({"error": {"message": e.message}}, status=400)
    answer = state.pick(decoded)
    if answer.status != 200:
        state.recorder.request(decoded, "generate", answer.status, request.headers)
        return scripted_status(answer)
    cached = state.cached_tokens(decoded, answer)
    state.recorder.request(decoded, "generate", 200, request.headers, cached_tokens=cached)
    plans = [
        plan(answer, i, decoded.input_ids, decoded.sampling, decoded.logprobs, state.checkpoint)
        for i in range(decoded.n)
    ]
    asked = fields.get("incremental_stream_output") or fields.get("stream_output")
    dialect = SseDialect(decoded, cached, state, bool(asked) or state.options.incremental)
    async with state.registry.entered(decoded.rid) as run:
        if fields.get("stream"):
            return await say(request, answer, plans, dialect, run, state.options.keep_alive_s)
        return await _whole(request, answer, plans, dialect, run)


async def _whole(
    request: web.Request, answer: Answer, plans: list[Plan], dialect: SseDialect, run: Running
) -> web.StreamResponse:
    """The non-stream answer: everything at once, after the time a stream would have taken."""
    if answer.failure:
        return await fault_before_headers(request, answer.failure[1], answer, run)
    first = answer.delay_ms if answer.first_delay_ms is None else answer.first_delay_ms
    steps = max(len(p.pieces) for p in plans)
    await _sleep(run, (first + answer.delay_ms * max(0, steps - 1)) / 1000)
    out = []
    for index, one in enumerate(plans):
        for i, piece in enumerate(one.pieces):
            dialect.add(index, piece, one.rows[i] if one.rows is not None else None)
        run.sent_tokens += one.tokens
        out.append(dialect.body(index, finish_reason(one.finish, one.matched, one.tokens)))
    run.over = True
    return web.json_response(out[0] if len(out) == 1 else out, headers=answer.headers)


async def _sleep(run: Running, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(run.aborted.wait(), seconds)

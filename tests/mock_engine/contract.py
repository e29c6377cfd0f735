"""POST /catalejo/v1/generate, as every engine of the contract answers it."""

from __future__ import annotations

import asyncio

from aiohttp import web

from engine import wire
from tests.mock_engine.answering import plan
from tests.mock_engine.script import Answer
from tests.mock_engine.state import State
from tests.mock_engine.streaming import say


class PromptTooLong(wire.WireError):
    code = "context_length_exceeded"


class NdjsonDialect:
    content_type = wire.REPLY_CONTENT_TYPE
    keep_alive = b"\n"

    def __init__(self, prompt_tokens: int, cached_tokens: int, n: int) -> None:
        self._prompt, self._cached = prompt_tokens, cached_tokens
        self._counts = [0] * n
        self._begun: set[int] = set()

    def tokens(self, index: int, ids: list[int], rows: list[wire.LogprobRow] | None) -> bytes:
        cached = None if index in self._begun else self._cached
        self._begun.add(index)
        self._counts[index] += len(ids)
        return wire.encode_reply(wire.Tokens(index, ids, rows, cached))

    def finish(self, index: int, kind: str, matched: int | None) -> bytes:
        usage = wire.Usage(self._prompt, self._counts[index], self._cached)
        return wire.encode_reply(wire.Finish(index, kind, usage, matched))  # type: ignore[arg-type]

    def done(self) -> bytes:
        return wire.encode_reply(wire.Done())

    def failure(self, code: str, message: str, retryable: bool) -> bytes:
        return wire.encode_reply(wire.Failure(code, message, retryable))


async def read_body(request: web.Request, limit: int) -> bytes:
    """The cap is enforced while reading."""
    pieces, size = [], 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > limit:
            raise wire.BodyTooLarge(f"body is over {limit} bytes, the limit")
        pieces.append(piece)
    return b"".join(pieces)


def _checked(body: bytes, state: State) -> wire.GenerateRequest:
    decoded = wire.decode_request(body, max_body_bytes=state.options.max_body_bytes)
    for item in decoded.items:
        wire.verify_hash(item)
    checkpoint = state.checkpoint
    if int(decoded.input_ids.max()) >= checkpoint.vocab_size:
        raise wire.BadHeader(f"input_ids hold an id over {checkpoint.vocab_size - 1}, the last one", param="input_ids")
    wire.check_placeholders(decoded, checkpoint.image_token_id, checkpoint.video_token_id)
    if len(decoded.input_ids) >= checkpoint.max_positions:
        limit = checkpoint.max_positions
        raise PromptTooLong(
            f"the prompt has {len(decoded.input_ids)} tokens; the context holds {limit}, answer included",
            param="input_ids",
        )
    return decoded


async def generate(request: web.Request) -> web.StreamResponse:
    state = State.of(request)
    try:
        body = await read_body(request, state.options.max_body_bytes)
        decoded = await asyncio.to_thread(_checked, body, state) if len(body) > 1 << 20 else _checked(body, state)
    except wire.WireError as e:
        state.recorder.refused("catalejo", 400, e.body()["error"], request.headers)
        return web.json_response(e.body(), status=400)
    answer = state.pick(decoded)
    return refusal(request, state, decoded, answer) or await _answer(request, state, decoded, answer)


def refusal(
    request: web.Request, state: State, decoded: wire.GenerateRequest, answer: Answer
) -> web.StreamResponse | None:
    """The scripted status, or 409 for rows the engine does not hold."""
    missing = state.rows.missing(decoded)
    hash_only = [i.hash for i in decoded.items if i.data is None]
    scripted = [h for h in hash_only if h in answer.missing_hashes or "*" in answer.missing_hashes]
    missing = list(dict.fromkeys(missing + scripted))
    if answer.status == 409:
        missing = missing or [h for h in answer.missing_hashes if h != "*"] or [i.hash for i in decoded.items]
    if missing:
        state.rows.forget(missing)
        if answer.status != 409 and (answer.pieces is not None or answer.choices or not scripted):
            state.put_back(answer)
        state.recorder.request(decoded, "catalejo", 409, request.headers, missing=missing)
        body = {"error": {"code": "missing_media", "message": f"{len(missing)} items are not here"}, "missing": missing}
        return web.json_response(answer.body or body, status=409, headers=answer.headers)
    if answer.status != 200:
        state.recorder.request(decoded, "catalejo", answer.status, request.headers)
        return scripted_status(answer)
    return None


def scripted_status(answer: Answer) -> web.Response:
    code = answer.code or {429: "overloaded", 503: "unavailable"}.get(answer.status, "scripted")
    body = answer.body or {"error": {"code": code, "message": f"the script says {answer.status}", "param": None}}
    if isinstance(body, str):
        return web.Response(text=body, status=answer.status, headers=answer.headers)
    return web.json_response(body, status=answer.status, headers=answer.headers)


async def _answer(
    request: web.Request, state: State, decoded: wire.GenerateRequest, answer: Answer
) -> web.StreamResponse:
    state.rows.add(decoded)
    cached = state.cached_tokens(decoded, answer)
    state.recorder.request(decoded, "catalejo", 200, request.headers, cached_tokens=cached)
    plans = [
        plan(answer, i, decoded.input_ids, decoded.sampling, decoded.logprobs, state.checkpoint)
        for i in range(decoded.n)
    ]
    dialect = NdjsonDialect(len(decoded.input_ids), cached, decoded.n)
    async with state.registry.entered(decoded.rid) as run:
        return await say(request, answer, plans, dialect, run, state.options.keep_alive_s)

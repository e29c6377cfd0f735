"""Says a plan on a connection: delays, keep-alives, aborts and faults, the same for both routes.

A `Dialect` turns events into bytes (contract.py: NDJSON; stock.py: SSE). A fault closes or spoils the connection here,
because only here is the transport known."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from engine.wire import LogprobRow
from tests.mock_engine.answering import Plan
from tests.mock_engine.recorder import Recorder
from tests.mock_engine.script import Answer

SHORT_PAUSE_S = 0.1
GARBAGE = b"\x00\xff this is not JSON {\n"


class Dialect(Protocol):
    content_type: str
    keep_alive: bytes  # empty: this dialect has none

    def tokens(self, index: int, ids: list[int], rows: list[LogprobRow] | None) -> bytes: ...
    def finish(self, index: int, kind: str, matched: int | None) -> bytes: ...
    def done(self) -> bytes: ...
    def failure(self, code: str, message: str, retryable: bool) -> bytes: ...


@dataclass(eq=False)
class Running:
    """A request being answered. `aborted`: by /abort_request. `over`: the mock has decided the end."""

    rid: str
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    sent_tokens: int = 0
    over: bool = False

    @property
    def phase(self) -> str:
        return "decode" if self.sent_tokens else "prefill"


class Registry:
    """What runs now, and what has run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.running: set[Running] = set()
        self.finished = 0
        self.generated_tokens = 0

    @contextlib.asynccontextmanager
    async def entered(self, rid: str) -> AsyncIterator[Running]:
        """A client that goes away before the end is recorded as an abort, whatever the request was doing."""
        run = Running(rid)
        self.running.add(run)
        try:
            yield run
        except (asyncio.CancelledError, ConnectionError):
            if not run.over:
                self._recorder.abort(rid, run.phase, "disconnect", run.sent_tokens)
            raise
        finally:
            run.over = True
            self.running.discard(run)
            self.finished += 1
            self.generated_tokens += run.sent_tokens

    def abort(self, rid: str | None) -> int:
        """Aborts the requests named `rid` (None: all). Returns how many."""
        hit = [r for r in self.running if (rid is None or r.rid == rid) and not r.over and not r.aborted.is_set()]
        for run in hit:
            self._recorder.abort(run.rid, run.phase, "abort_request", run.sent_tokens)
            run.aborted.set()
        return len(hit)


async def say(
    request: web.Request,
    answer: Answer,
    plans: Sequence[Plan],
    dialect: Dialect,
    run: Running,
    keep_alive_s: float,
) -> web.StreamResponse:
    after, kind = answer.failure or (None, "")
    if after == -1:
        return await fault_before_headers(request, kind, answer, run)
    response = web.StreamResponse(headers=answer.headers)
    response.content_type = dialect.content_type
    await response.prepare(request)
    voice = _Voice(response, answer, dialect, run, keep_alive_s)
    for count, (index, ids, rows) in enumerate(_turns(plans)):
        if count == after:
            return await _fault(request, response, kind, voice)
        delay = answer.first_delay_ms if count == 0 and answer.first_delay_ms is not None else answer.delay_ms
        await voice.pause(delay / 1000)
        if run.aborted.is_set():
            break
        await voice.write(dialect.tokens(index, ids, rows))
        run.sent_tokens += len(ids)
    if after is not None and not run.aborted.is_set():
        return await _fault(request, response, kind, voice)
    run.over = True
    for index, plan in enumerate(plans):
        kind, matched = ("abort", None) if run.aborted.is_set() else (plan.finish, plan.matched)
        await voice.write(dialect.finish(index, kind, matched))
    await voice.write(dialect.done() + answer.trailing.encode())
    await response.write_eof()
    return response


def _turns(plans: Sequence[Plan]) -> Iterator[tuple[int, list[int], list[LogprobRow] | None]]:
    """Pieces of all choices, interleaved: piece 0 of each choice, piece 1 of each, ..."""
    for step in range(max((len(p.pieces) for p in plans), default=0)):
        for index, plan in enumerate(plans):
            if step < len(plan.pieces):
                yield index, plan.pieces[step], plan.rows[step] if plan.rows is not None else None


class _Voice:
    def __init__(
        self, response: web.StreamResponse, answer: Answer, dialect: Dialect, run: Running, keep_alive_s: float
    ) -> None:
        self._response = response
        self._split = answer.split_bytes
        self.answer = answer
        self.dialect = dialect
        self.run = run
        self._keep_alive_s = keep_alive_s

    async def write(self, data: bytes) -> None:
        if not self._split:
            await self._response.write(data)
            return
        for start in range(0, len(data), self._split):
            await self._response.write(data[start : start + self._split])
            await asyncio.sleep(0.001)

    async def pause(self, seconds: float) -> None:
        """Ends early when the request is aborted; says the keep-alive meanwhile."""
        if seconds <= min(SHORT_PAUSE_S, self._keep_alive_s):
            if seconds > 0:
                await asyncio.sleep(seconds)  # cheaper than waiting for two things, and soon over
            return
        while seconds > 0 and not self.run.aborted.is_set():
            nap = min(seconds, self._keep_alive_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.run.aborted.wait(), nap)
            seconds -= nap
            if seconds > 0 and self.dialect.keep_alive:
                await self._response.write(self.dialect.keep_alive)


async def _fault(request: web.Request, response: web.StreamResponse, kind: str, voice: _Voice) -> web.StreamResponse:
    answer = voice.answer
    if kind == "hang":
        await voice.run.aborted.wait()
    voice.run.over = True
    if kind == "error":
        code = answer.code or "engine_failure"
        await voice.write(voice.dialect.failure(code, "the script ends here", answer.retryable))
    elif kind == "garbage":
        await voice.write(GARBAGE)
    elif kind in ("reset", "half_close"):
        await _break(request, kind)
        return response
    await response.write_eof()
    return response


async def fault_before_headers(request: web.Request, kind: str, answer: Answer, run: Running) -> web.StreamResponse:
    if kind == "hang":
        await run.aborted.wait()
    run.over = True
    if kind == "error":
        body = {"error": {"code": answer.code or "engine_failure", "message": "the script fails before the headers"}}
        return web.json_response(body, status=500, headers=answer.headers)
    transport = request.transport
    if kind == "garbage" and transport is not None and not transport.is_closing():
        transport.write(GARBAGE)
    await _break(request, kind)
    return web.Response()


async def _break(request: web.Request, kind: str) -> None:
    """reset: RST. half_close: FIN, while still reading for up to 5 s. Others: plain close."""
    transport = request.transport
    if transport is None or transport.is_closing():
        return
    if kind == "reset":
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    elif kind == "half_close":
        transport.write_eof()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(5)
        transport.close()
    else:
        transport.close()

"""GET /debug/tasks and /debug/stacks of the second port: where every task and every thread is now; /debug/loop: the longest
stalls of the event loop while it is asked. Names of functions, files and lines only, never a value of a request. Each answer is
about the one process that gave it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import traceback
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.api.openapi import RawRoute
from gateway.api.responses import json_response
from gateway.errors import ApiError
from gateway.observability.loop_lag import lateness

LONGEST_S: Final = 60.0
SHOWN: Final = 10
router = APIRouter(route_class=RawRoute)


@router.get("/debug/tasks")
async def tasks(request: Request) -> Response:
    parts = []
    for task in sorted(asyncio.all_tasks(), key=lambda t: t.get_name()):
        coroutine = task.get_coro()
        what = getattr(coroutine, "__qualname__", type(coroutine).__name__)
        parts.append(f"{task.get_name()}: {what}\n{_frames(task)}")
    return PlainTextResponse(f"process {os.getpid()}, {len(parts)} tasks\n\n" + "\n".join(parts))


def _frames(task: asyncio.Task[object]) -> str:
    lines = [f"  {f.f_code.co_filename}:{f.f_lineno} {f.f_code.co_qualname}" for f in task.get_stack()]
    return "\n".join(lines) + "\n"


@router.get("/debug/stacks")
async def stacks(request: Request) -> Response:
    names = {t.ident: t.name for t in threading.enumerate()}
    found = sys._current_frames()
    parts = [f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in found.items()]
    return PlainTextResponse(f"process {os.getpid()}, {len(parts)} threads\n\n" + "\n".join(parts))


@router.get("/debug/loop")
async def loop(request: Request) -> Response:
    """?seconds=3: how late a timer of 1 ms fired in that time: the longest, and how often it was asked."""
    given = request.query_params.get("seconds", "3")
    seconds = float(given) if re.fullmatch(r"\d{1,3}(\.\d{1,6})?", given, re.ASCII) else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise ApiError("invalid_value", f"'seconds' must lie above 0 and up to {LONGEST_S:g}", param="seconds")
    late = await lateness(seconds)
    longest = [round(s * 1e3, 3) for s in sorted(late, reverse=True)[:SHOWN]]
    return json_response({"process": os.getpid(), "seconds": seconds, "timers": len(late), "longest_ms": longest})

"""GET /debug/tasks and /debug/stacks of the second port: where every task and every thread is now. Names of functions, files
and lines only, never a value. Each answer is about the one process that gave it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.api.openapi import RawRoute

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

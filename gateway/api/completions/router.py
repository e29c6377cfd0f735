"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.api import sse
from gateway.api.body import read_body, require_json
from gateway.api.completions.answer import ChoiceWriter, usage_of_all
from gateway.api.completions.protocol import CompletionRequest
from gateway.api.completions.rows import Rows, shown
from gateway.api.completions.serving import ROUTE, deliver_all
from gateway.api.connection import connection_of
from gateway.api.context import context_of
from gateway.api.disconnect import while_connected
from gateway.api.generation.run import Run, Update
from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.api.streaming import event_stream
from gateway.observability.usage import RequestUsage
from gateway.services import services_of

router = APIRouter(route_class=RawRoute, tags=["completions"])


@router.post(ROUTE, **documented(CompletionRequest, "Continue a text", streams=True))
async def completions(request: Request) -> Response:
    services, context = services_of(request), context_of(request)
    service = services.completions
    context.usage = RequestUsage()
    require_json(request)
    body = await read_body(request, service.settings)
    asked, size = await service.read(body), len(body)
    del body
    head = service.head()
    if asked.stream:
        runs, writers = await while_connected(connection_of(request.scope), service.open(asked, size, context))

        async def produce(client: sse.Client) -> None:
            await _write(asked, head, runs, writers, client)

        return event_stream(produce, runs, context, services)

    async def work() -> Response:
        runs, writers = await service.open(asked, size, context)
        return json_response(await _whole(asked, head, runs, writers))

    return await while_connected(connection_of(request.scope), work())


async def _close(runs: list[Run]) -> None:
    await asyncio.gather(*(run.aclose() for run in runs))


def _chunks(
    asked: CompletionRequest,
    head: dict[str, Any],
    runs: list[Run],
    writers: list[ChoiceWriter],
    updates: list[Update],
) -> Iterator[bytes]:
    for update in updates:
        text, rows = writers[update.index].take(update)
        if not text and rows is None and update.finish is None:
            continue
        choice = {"index": update.index, "text": text, "logprobs": shown([rows]), "finish_reason": update.finish}
        model = runs[0].opened.told
        usage = {"usage": usage_of_all(runs)} if asked.continuous_usage else {}
        yield sse.event({**head, "model": model, "choices": [choice], **usage})


async def _whole(
    asked: CompletionRequest, head: dict[str, Any], runs: list[Run], writers: list[ChoiceWriter]
) -> dict[str, Any]:
    texts: list[list[str]] = [[] for _ in writers]
    logprobs: list[list[Rows | None]] = [[] for _ in writers]
    finishes: list[str | None] = [None] * len(writers)

    def take(updates: list[Update]) -> bool:
        for update in updates:
            text, rows = writers[update.index].take(update)
            texts[update.index].append(text)
            logprobs[update.index].append(rows)
            finishes[update.index] = update.finish
        return True

    try:
        await deliver_all(runs, asked.n or 1, take)
    finally:
        await _close(runs)
    choices = [
        {"index": i, "text": "".join(t), "logprobs": shown(p), "finish_reason": f}
        for i, (t, p, f) in enumerate(zip(texts, logprobs, finishes, strict=True))
    ]
    return {**head, "model": runs[0].opened.told, "choices": choices, "usage": usage_of_all(runs)}


async def _write(
    asked: CompletionRequest,
    head: dict[str, Any],
    runs: list[Run],
    writers: list[ChoiceWriter],
    client: sse.Client,
) -> None:
    def take(updates: list[Update]) -> bool:
        data = b"".join(_chunks(asked, head, runs, writers, updates))
        return client.write(data) if data else True

    try:
        await deliver_all(runs, asked.n or 1, take, client.ready)
        if asked.include_usage:
            last = {**head, "model": runs[0].opened.told, "choices": [], "usage": usage_of_all(runs)}
            client.write(sse.event(last) + sse.DONE)
        else:
            client.write(sse.DONE)
    finally:
        await _close(runs)

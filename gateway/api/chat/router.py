"""POST /v1/chat/completions."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.body import read_body, require_json
from gateway.api.chat.message import whole_answer
from gateway.api.chat.protocol import ChatRequest
from gateway.api.chat.serving import ROUTE, ChatService
from gateway.api.chat.stream import ChunkWriter
from gateway.api.connection import connection_of
from gateway.api.context import context_of
from gateway.api.disconnect import while_connected
from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.api.streaming import event_stream
from gateway.observability.usage import RequestUsage
from gateway.services import services_of

router = APIRouter(route_class=RawRoute, tags=["chat"])


@router.post(ROUTE, **documented(ChatRequest, "Answer a conversation", streams=True))
async def chat_completions(request: Request) -> Response:
    services, context = services_of(request), context_of(request)
    chat: ChatService = services.chat
    context.usage = RequestUsage()
    require_json(request)
    body = await read_body(request, chat.settings)
    asked, size = await chat.read(body), len(body)
    del body
    if asked.stream:
        run = await while_connected(connection_of(request.scope), chat.open(asked, size, context))
        writer = ChunkWriter(chat.style(asked, run), len(run.choices))
        return event_stream(partial(writer.write, run), [run], context, services)

    async def work() -> Response:
        run = await chat.open(asked, size, context)
        return json_response(await whole_answer(run, chat.style(asked, run)))

    return await while_connected(connection_of(request.scope), work())

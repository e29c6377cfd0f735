"""POST /tokenize, /detokenize, and both under /v1."""

from __future__ import annotations

import asyncio

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.body import read_body, require_json
from gateway.api.connection import connection_of
from gateway.api.context import context_of
from gateway.api.disconnect import while_connected
from gateway.api.openapi import RawRoute, documented
from gateway.api.responses import json_response
from gateway.api.tokenize.protocol import DetokenizeRequest, TokenizeText
from gateway.services import services_of

router = APIRouter(route_class=RawRoute, tags=["tokens"])


@router.post("/v1/tokenize", **documented(TokenizeText, "Token ids of a text, or of a chat request's prompt"))
@router.post("/tokenize", include_in_schema=False)
async def tokenize(request: Request) -> Response:
    services = services_of(request)
    require_json(request)
    body = await read_body(request, services.settings.api)
    large = len(body) > services.settings.api.offload_bytes
    conversation = await asyncio.to_thread(_has_messages, body) if large else _has_messages(body)
    work = services.tokenize.tokenize(body, context_of(request).tenant, conversation=conversation)
    return json_response(await while_connected(connection_of(request.scope), work))


@router.post("/v1/detokenize", **documented(DetokenizeRequest, "Text of token ids"))
@router.post("/detokenize", include_in_schema=False)
async def detokenize(request: Request) -> Response:
    services = services_of(request)
    require_json(request)
    body = await read_body(request, services.settings.api)
    work = services.tokenize.detokenize(body, context_of(request).tenant)
    return json_response(await while_connected(connection_of(request.scope), work))


def _has_messages(body: bytes) -> bool:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return b'"messages"' in body  # the form's validation mends it, or tells what is wrong
    return isinstance(value, dict) and "messages" in value

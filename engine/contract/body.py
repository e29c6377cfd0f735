"""Reading a request's body within its limit, and refusals as responses."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine import wire
from engine.contract.errors import Refusal


def reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")


def refusal(error: Refusal | wire.WireError) -> Response:
    if isinstance(error, Refusal):
        after = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
        return reply(error.body(), error.status, after)
    return reply(error.body(), 413 if isinstance(error, wire.BodyTooLarge) else 400)


async def read_body(request: Request, limit: int) -> bytearray:
    """Raises wire.BodyTooLarge as soon as it is known."""
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > limit:
        raise wire.BodyTooLarge(f"body is {said} bytes; the limit is {limit}")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise wire.BodyTooLarge(f"body is over {len(body)} bytes; the limit is {limit}")
    return body

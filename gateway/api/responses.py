"""JSON out, by orjson, and the one place where an ApiError becomes a response."""

from __future__ import annotations

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import ApiError


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.body(), error.status, dict(error.headers))


def install_error_handlers(app: FastAPI) -> None:
    """ApiError and the framework's own 404 and 405 become OpenAI bodies."""

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        request.scope["catalejo"].error_code = error.code
        return error_response(error)

    async def http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path[:200]}"
        if error.status_code == 404:
            refusal = ApiError("not_found", f"unknown URL: {where}")
        elif error.status_code == 405:
            refusal = ApiError("method_not_allowed", f"method not allowed: {where}", headers=dict(error.headers or {}))
        else:
            refusal = ApiError("invalid_value", str(error.detail))
            refusal.status = error.status_code
        return await api_error(request, refusal)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_exception)

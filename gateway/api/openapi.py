"""What /docs says of an endpoint whose body we read ourselves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

ERROR_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ERROR: Final = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
_REFUSALS: Final = {
    "400": "The request is wrong; `param` names the field",
    "401": "No valid API key",
    "404": "Unknown model or file",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "429": "A limit is reached; see Retry-After",
    "499": "The client left",
    "500": "The gateway failed",
    "502": "The engine failed",
    "503": "No engine, or no room; see Retry-After",
    "504": "The engine did not answer in time",
}
_models: dict[str, type[BaseModel]] = {}


class RawRoute(APIRoute):
    """The endpoint takes the request as it is: none of the framework's work on parameters and bodies."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


def documented(
    body: type[BaseModel] | None, summary: str, *, streams: bool = False, path_parameters: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Keyword arguments for a route decorator."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    extra: dict[str, Any] = {"responses": {"200": {"description": "OK", "content": content}}}
    if path_parameters:
        text = {"type": "string"}
        extra["parameters"] = [{"name": n, "in": "path", "required": True, "schema": text} for n in path_parameters]
    if body is not None:
        _models[body.__name__] = body
        reference = {"$ref": f"#/components/schemas/{body.__name__}"}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
        extra["responses"] |= {status: {"description": text, **_ERROR} for status, text in _REFUSALS.items()}
    return {"summary": summary, "openapi_extra": extra, "response_model": None}


def add_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """Puts the request models and the error body into an OpenAPI document."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = ERROR_BODY
    for name, model in _models.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
    return document

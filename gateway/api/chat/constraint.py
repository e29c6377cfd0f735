"""What the answer must look like: JSON, JSON by a schema, or tool calls. The grammar begins after the thinking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import orjson

from gateway.api.chat.protocol import ChatRequest
from gateway.api.generation.protocol import GenerationRequest, JsonObjectFormat, JsonSchemaFormat, TextFormat
from gateway.errors import ApiError

MAX_SCHEMA_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar without the place where it begins."""

    type: Literal["json_schema", "regex", "ebnf", "structural_tag"]
    value: str


def constraint_of(request: ChatRequest) -> Constraint | None:
    return format_constraint(request)


def format_constraint(request: GenerationRequest) -> Constraint | None:
    """response_format's. Raises ApiError for a schema that is missing or too large."""
    match request.response_format:
        case None | TextFormat():
            return None
        case JsonObjectFormat():
            return Constraint("json_schema", '{"type":"object"}')
        case JsonSchemaFormat(json_schema=spec):
            param = "response_format.json_schema.schema"
            if spec.schema_ is None:
                raise ApiError("missing_required_parameter", f"missing required parameter: '{param}'", param=param)
            value = orjson.dumps(spec.schema_)
            if len(value) > MAX_SCHEMA_BYTES:
                raise ApiError("invalid_schema", f"the schema is larger than {MAX_SCHEMA_BYTES} bytes", param=param)
            return Constraint("json_schema", value.decode())

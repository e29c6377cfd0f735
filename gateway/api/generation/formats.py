"""response_format as the grammar maker takes it."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.api.generation.protocol import GenerationRequest, JsonSchemaFormat, TextFormat
from gateway.errors import ApiError

MAX_SCHEMA_BYTES: Final = 256 << 10


def response_format_of(request: GenerationRequest) -> dict[str, Any] | None:
    """None for free text. Raises ApiError for a schema that is missing or too large."""
    form = request.response_format
    if form is None or isinstance(form, TextFormat):
        return None
    if isinstance(form, JsonSchemaFormat):
        param = "response_format.json_schema.schema"
        if form.json_schema.schema_ is None:
            raise ApiError("missing_required_parameter", f"missing required parameter: '{param}'", param=param)
        try:
            size = len(orjson.dumps(form.json_schema.schema_))
        except TypeError as e:  # integers beyond 64 bits, nested too deeply
            raise ApiError("invalid_schema", f"'{param}' cannot be used: {e}", param=param) from None
        if size > MAX_SCHEMA_BYTES:
            raise ApiError("invalid_schema", f"the schema is larger than {MAX_SCHEMA_BYTES} bytes", param=param)
        if (reference := _outside(form.json_schema.schema_)) is not None:
            message = f"'{param}': $ref {reference[:80]!r} is outside of the schema; only '#...' is followed"
            raise ApiError("invalid_schema", message, param=param)
    return form.model_dump(by_alias=True, exclude_none=True)


def _outside(schema: Any) -> str | None:
    """A reference to another document, if there is one. A property may be named $ref: its value is no string."""
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            reference = one.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                return reference
            left += [v for k, v in one.items() if k not in ("const", "enum", "default", "examples")]
        elif isinstance(one, list):
            left += one
    return None

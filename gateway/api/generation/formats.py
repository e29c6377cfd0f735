"""response_format as the grammar maker takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from gateway.api.generation.protocol import GenerationRequest, JsonSchemaFormat, TextFormat
from gateway.errors import ApiError

MAX_SCHEMA_BYTES: Final = 256 << 10
NOT_HELD: Final = (
    "not", "if", "then", "else", "uniqueItems", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
"""JSON Schema keywords that a grammar leaves out: an answer could break them."""
LOOK_AROUND: Final = re.compile(r"\(\?<?[=!]")
HOLD_NAMES: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
HOLD_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
HOLD_ONE: Final = frozenset(
    {"items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else",
     "unevaluatedItems", "unevaluatedProperties"}
)  # fmt: skip


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
        _check(form.json_schema.schema_, param, strict=form.json_schema.strict is True)
    return form.model_dump(by_alias=True, exclude_none=True)


def _check(schema: Mapping[str, Any], param: str, *, strict: bool) -> None:
    """Raises ApiError for a reference that nobody follows and, when strict, for a keyword that no grammar holds."""
    for path, node in _subschemas(schema):
        where = f" (at {path[:80]})" if path else ""
        reference = node.get("$ref")
        if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
            message = f"'{param}': $ref {reference[:80]!r}{where}: only '#' and '#/...' within the schema are followed"
            raise ApiError("invalid_schema", message, param=param)
        if strict and (word := next((w for w in NOT_HELD if node.get(w) not in (None, False)), None)):
            message = (
                f"'{param}': '{word}'{where} is not supported with strict: true; leave it out or set strict to false"
            )
            raise ApiError("invalid_schema", message, param=param)
        if strict and isinstance(node.get("pattern"), str) and LOOK_AROUND.search(node["pattern"]):
            message = f"'{param}': 'pattern'{where} looks ahead or behind, which is not supported with strict: true"
            raise ApiError("invalid_schema", message, param=param)
        if strict and isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1:
            message = (
                f"'{param}': 'allOf' of several schemas{where} is not supported with strict: true; write one schema"
            )
            raise ApiError("invalid_schema", message, param=param)


def _subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path, schema) of a schema and all below it. Names of properties are no keywords, values of const no schemas."""
    left: list[tuple[str, Any]] = [("", schema)]
    while left:
        path, node = left.pop()
        if not isinstance(node, Mapping):
            continue
        yield path, node
        for word, value in node.items():
            if word in HOLD_NAMES and isinstance(value, Mapping):
                left += [(f"{path}/{word}/{name}", one) for name, one in value.items()]
            elif word in HOLD_LISTS and isinstance(value, list):
                left += [(f"{path}/{word}/{i}", one) for i, one in enumerate(value)]
            elif word in HOLD_ONE:
                left.append((f"{path}/{word}", value))

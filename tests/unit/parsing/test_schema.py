"""Leaves are typed by schema, then JSON, then text; odd schemas say nothing and break nothing."""

from typing import Any

import pytest

from gateway.parsing.schema import Schema, typed

CASES: list[tuple[str, str, Any]] = [
    ("integer", "7", 7),
    ("integer", " -7\n", -7),
    ("integer", "7.0", 7),
    ("integer", "7.5", 7.5),
    ("integer", "1e3", 1000.0),
    ("integer", "007", "007"),
    ("integer", "123456789012345678901234567890", 123456789012345678901234567890),
    ("integer", "seven", "seven"),
    ("integer", "", ""),
    ("number", "7", 7),
    ("number", "7.25", 7.25),
    ("number", "Infinity", "Infinity"),
    ("number", "1_000", "1_000"),
    ("boolean", "true", True),
    ("boolean", "False", False),
    ("boolean", "yes", "yes"),
    ("boolean", "1", 1),
    ("null", "null", None),
    ("null", "None", None),
    ("string null", "None", "None"),
    ("string null", "null", None),
    ("string integer", "7", 7),
    ("string integer", "7x", "7x"),
    ("string boolean", "true ", True),
    ("object", '{"a": 1}', {"a": 1}),
    ("object", "{a}", "{a}"),
    ("array", "[1]", [1]),
    ("object string", "[1]", "[1]"),
    ("", "7", 7),
    ("", "true", True),
    ("", '"quoted"', "quoted"),
    ("", "plain", "plain"),
    ("", "{broken", "{broken"),
    ("", "[" * 5000, "[" * 5000),
    ("integer", "9" * 5000, "9" * 5000),
    ("number", "1e999", "1e999"),
    ("", "[1e999]", "[1e999]"),
    ("", "[NaN]", "[NaN]"),
]


@pytest.mark.parametrize(("kinds", "text", "value"), CASES)
def test_a_leaf_becomes(kinds: str, text: str, value: Any) -> None:
    got = typed(text, frozenset(kinds.split()))
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("node", "kinds"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string null"),
        ({"enum": [1, "a", None, True, 1.5]}, "integer string null boolean number"),
        ({"const": "x"}, "string"),
        ({"properties": {}}, "object"),
        ({"items": {}}, "array"),
        ({"type": "string", "nullable": True}, "string null"),
        ({"anyOf": [{"type": "string"}, {"oneOf": [{"type": "integer"}]}]}, "string integer"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "number"}}}, "number"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}, ""),
        ({"$ref": "#"}, ""),
        ({"$ref": "#/nowhere/at/all"}, ""),
        ({"$ref": "https://example.org"}, ""),
        ({"type": 5, "enum": "abc", "anyOf": "x", "properties": []}, "object"),
        (True, ""),
        (None, ""),
        ([], ""),
    ],
)
def test_kinds_of_a_node(node: Any, kinds: str) -> None:
    assert Schema(node).kinds == frozenset(kinds.split())
    assert Schema(node).property("nothing") is None
    assert isinstance(Schema(node).items(), Schema)

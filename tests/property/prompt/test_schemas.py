"""Whatever a client calls a schema, typing and grammars make the best of it and never fail."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.parsing import OutputParser, ToolSpec
from gateway.prompt import output_grammar
from tests.property.parsing.transcripts import NAMESPACE, answer, tiny

WORDS = ["type", "properties", "items", "required", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs",
         "additionalProperties", "nullable", "minimum", "minItems", "k", "a"]  # fmt: skip
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        1,
        1.5,
        "string",
        "object",
        "array",
        "integer",
        "null",
        "#",
        "#/$defs/a",
        "k",
        [],
        {},
        ["k"],
        ["string", "null"],
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.dictionaries(st.sampled_from(WORDS), inner, max_size=5), st.lists(inner, max_size=3)),
    max_leaves=20,
)
PARTS = ["<tool_call>\n", '<invoke name="f">', "<k>", "<a>1", "</a>", "</k>", "<a>", "<item>x", "</item>", "</a>"]
PARTS += ["<k>true", "</k>", "</invoke>\n", "</tool_call>"]
CALL = "".join(NAMESPACE + part for part in PARTS)


@settings(max_examples=500)
@given(schema=SCHEMAS)
def test_any_schema_is_made_the_best_of(schema: Any) -> None:
    parser = OutputParser(tiny(), starts_in_reasoning=False, tools=[ToolSpec("f", schema)])
    ((name, arguments),) = answer(parser.feed_text(CALL) + parser.finish()).calls
    assert name == "f" and isinstance(arguments, dict)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    grammar = output_grammar(tiny(), starts_in_reasoning=False, tools=tools, tool_choice="required")
    assert grammar is not None and json.loads(grammar.value)["type"] == "structural_tag"

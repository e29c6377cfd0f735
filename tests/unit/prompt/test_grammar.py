"""Whatever a model says under our grammars, the parsers make calls and JSON of it that fit the schema.

The model here is a dice: random tokens among those the grammar allows, through xgrammar itself."""

import itertools
import json
import random
from typing import Any

import pytest

from engine.wire import Grammar
from gateway.errors import ApiError
from gateway.parsing import OutputParser, ToolSpec
from gateway.prompt import output_grammar
from gateway.prompt.tool_schema import simplified
from gateway.prompt.vocabulary import byte_of_char
from tests.property.parsing.transcripts import NAMESPACE, Answer, answer, tiny

xgrammar = pytest.importorskip("xgrammar")


@pytest.fixture(scope="module")
def compiler() -> Any:
    """Vocabulary as the engines give it: special tokens blank, the others as their bytes."""
    char_of_byte = {b: c for c, b in byte_of_char().items()}
    table = tiny().vocabulary.token_bytes
    special = {t.id for t in tiny().vocabulary.added if t.special}
    entries = ["" if i in special else "".join(char_of_byte[b] for b in data) for i, data in enumerate(table)]
    info = xgrammar.TokenizerInfo(
        entries, xgrammar.VocabType.BYTE_LEVEL, vocab_size=len(entries), stop_token_ids=[tiny().eos_ids[0]]
    )
    return xgrammar.GrammarCompiler(info, max_threads=1)


def compiled(compiler: Any, grammar: Grammar) -> Any:
    make = {"json_schema": compiler.compile_json_schema, "structural_tag": compiler.compile_structural_tag}
    return make[grammar.type](grammar.value)


def accepts(compiler: Any, grammar: Grammar, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(compiled(compiler, grammar))
    ids = tiny().tokenizer.encode(text, add_special_tokens=False).ids
    return all(matcher.accept_token(i) for i in ids) and matcher.accept_token(tiny().eos_ids[0])


def rolled(compiler: Any, grammar: Grammar, rng: random.Random, limit: int = 400) -> list[int] | None:
    """Ids of a random answer that ended, or None when it did not in `limit` tokens. Markers are more likely than other
    tokens, or no text would ever end."""
    matcher = xgrammar.GrammarMatcher(compiled(compiler, grammar))
    bits = xgrammar.allocate_token_bitmask(1, 512)
    likely = [i for i in (tiny().namespace_id, tiny().think_end_id, tiny().eos_ids[0]) if i is not None]
    likely += [tiny().encode_plain(c)[0] for c in '"}],:']
    ids: list[int] = []
    while not matcher.is_terminated():
        matcher.fill_next_token_bitmask(bits)
        words = bits[0].tolist()
        allowed = [i for i in range(512) if words[i // 32] >> (i % 32) & 1]
        preferred = [i for i in likely if i in allowed]
        token = rng.choice(preferred if preferred and rng.random() < 0.4 else allowed)
        assert matcher.accept_token(token)
        ids.append(token)
        if len(ids) > limit:
            return None
    return ids


def parsed(ids: list[int], tools: list[dict[str, Any]], starts: bool | None) -> tuple[Answer, OutputParser]:
    specs = [ToolSpec(t["function"]["name"], t["function"].get("parameters")) for t in tools]
    parser = OutputParser(tiny(), starts_in_reasoning=starts, tools=specs, parse_tools=bool(tools), structured=True)
    return answer(parser.feed(ids) + parser.finish()), parser


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """A validator for the schemas below."""
    if "anyOf" in schema:
        return any(fits(value, s) for s in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "object":
            properties = schema["properties"]
            return (
                isinstance(value, dict)
                and set(schema.get("required", [])) <= set(value) <= set(properties)
                and all(fits(v, properties[k]) for k, v in value.items())
            )
        case "array":
            return (
                isinstance(value, list)
                and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**6)
                and all(fits(v, schema["items"]) for v in value)
            )
        case "integer":
            low, high = schema.get("minimum", -(10**400)), schema.get("maximum", 10**400)
            return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case kind:
            return isinstance(value, {"string": str, "boolean": bool, "null": type(None)}[kind])


ARGUMENTS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "exact": {"type": "number"},
        "now": {"type": "boolean"},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "where": {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["city", "days"],
}
FLAT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": ARGUMENTS}},
    {"type": "function", "function": {"name": "nothing"}},
    {"type": "function", "function": {"name": "count", "parameters": FLAT}},
]
SCHEMAS = {t["function"]["name"]: t["function"].get("parameters", {"type": "object", "properties": {}}) for t in TOOLS}


@pytest.mark.parametrize("starts", [False, True, None])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls_always_parse_and_fit_their_schema(compiler: Any, choice: Any, starts: bool | None) -> None:
    rng = random.Random(f"{choice}{starts}")
    grammar = output_grammar(tiny(), starts_in_reasoning=starts, tools=TOOLS, tool_choice=choice)
    assert grammar is not None
    assert grammar.after_ids == ((tiny().think_end_id,) if starts else None)
    ended = 0
    for _ in range(400):
        if ended == 12:
            break
        ids = rolled(compiler, grammar, rng)
        if ids is None:
            continue
        ended += 1
        got, parser = parsed(ids, TOOLS, False if starts else starts)
        assert got.calls and parser.parse_errors == 0 and got.content == ""
        for name, arguments in got.calls:
            assert fits(arguments, SCHEMAS[name]), (name, arguments)
        if choice != "required":
            assert [name for name, _ in got.calls] == ["get_weather"]
    assert ended == 12


def test_without_parallel_calls_there_is_one(compiler: Any) -> None:
    call = f'{NAMESPACE}<invoke name="count">{NAMESPACE}<n>3{NAMESPACE}</n>{NAMESPACE}</invoke>\n'
    one, two = (f"{NAMESPACE}<tool_call>\n{call * k}{NAMESPACE}</tool_call>" for k in (1, 2))
    for parallel, expected in ((True, [True, True]), (False, [True, False])):
        grammar = output_grammar(
            tiny(), starts_in_reasoning=False, tools=TOOLS, tool_choice="required", parallel=parallel
        )
        assert grammar is not None
        assert [accepts(compiler, grammar, text) for text in (one, two)] == expected


@pytest.mark.parametrize("starts", [False, True, None])
@pytest.mark.parametrize("with_tools", [False, True])
def test_json_answers_always_fit(compiler: Any, starts: bool | None, with_tools: bool) -> None:
    schema = {**ARGUMENTS, "additionalProperties": False}
    rng = random.Random(f"{starts}{with_tools}")
    grammar = output_grammar(
        tiny(),
        starts_in_reasoning=starts,
        tools=TOOLS if with_tools else None,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert grammar is not None and grammar.after_ids == ((tiny().think_end_id,) if starts else None)
    answers = 0
    for _ in range(400):
        if answers == 8:
            break
        ids = rolled(compiler, grammar, rng)
        if ids is None or (with_tools and NAMESPACE in tiny().decode(ids)):
            continue  # calls have their own test
        answers += 1
        got, _ = parsed(ids, TOOLS if with_tools else [], False if starts else starts)
        assert not got.calls
        assert fits(json.loads(got.content), schema), got.content
    assert answers == 8


def test_adaptive_thinking_is_part_of_the_grammar(compiler: Any) -> None:
    grammar = output_grammar(tiny(), starts_in_reasoning=None, response_format={"type": "json_object"})
    assert grammar is not None
    for before in ("", "</mm:think>", "<mm:think>hm {</mm:think>"):
        assert accepts(compiler, grammar, before + '{"a": 1}')
    assert not accepts(compiler, grammar, "<mm:think>hm")
    assert not accepts(compiler, grammar, "hm {}")


def test_strict_tools_on_auto_leave_text_free_and_hold_calls_to_the_schema(compiler: Any) -> None:
    tools = [{"type": "function", "function": {**t["function"], "strict": True}} for t in TOOLS]
    good, bad = (
        f'¤<tool_call>\n¤<invoke name="count">¤<n>{n}¤</n>¤</invoke>\n¤</tool_call>'.replace("¤", NAMESPACE)
        for n in ("3", "x")
    )
    for starts in (False, True, None):
        grammar = output_grammar(tiny(), starts_in_reasoning=starts, tools=tools, tool_choice="auto")
        assert grammar is not None and grammar.after_ids == ((tiny().think_end_id,) if starts else None)
        for text in ("", "no call", f"Let me see. {good}", good):
            assert accepts(compiler, grammar, text)
        assert not accepts(compiler, grammar, f"Let me see. {bad}")
        assert accepts(compiler, grammar, "<mm:think>hm</mm:think>" + good)
    odd = [{"function": {"name": "f", "strict": True, "parameters": {"properties": {"a b": {}}}}}]
    assert output_grammar(tiny(), starts_in_reasoning=False, tools=odd) is None
    mixed = [tools[0], TOOLS[1]]
    assert output_grammar(tiny(), starts_in_reasoning=False, tools=mixed) is None


def test_no_grammar_when_the_model_is_free() -> None:
    for choice, form in itertools.product(("auto", "none", None), (None, {"type": "text"})):
        assert (
            output_grammar(tiny(), starts_in_reasoning=False, tools=TOOLS, tool_choice=choice, response_format=form)
            is None
        )


@pytest.mark.parametrize(
    ("options", "code", "param"),
    [
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tool_choice": "always", "tools": TOOLS}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "invalid_value", "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS},
            "invalid_value",
            "tool_choice.function.name",
        ),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "invalid_schema", "response_format.json_schema.schema"),
        (
            {
                "tool_choice": "required",
                "tools": [{"function": {"name": "f", "parameters": {"properties": {"a b": {}}}}}],
            },
            "invalid_schema",
            "tools[0].function.parameters",
        ),
    ],
)
def test_wrong_choices_are_named(options: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as e:
        output_grammar(tiny(), starts_in_reasoning=False, **options)
    assert (e.value.code, e.value.param) == (code, param)


def test_schemas_beyond_what_can_be_written_are_refused_and_large_numbers_are_not() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"not": deep}
    holder = {"type": "json_schema", "json_schema": {"schema": deep}}
    with pytest.raises(ApiError) as e:
        output_grammar(tiny(), starts_in_reasoning=False, response_format=holder)
    assert e.value.code == "invalid_schema"
    holder["json_schema"] = {"schema": {"const": 10**31}}
    grammar = output_grammar(tiny(), starts_in_reasoning=False, response_format=holder)
    assert grammar is not None and grammar.value == f'{{"const":{10**31}}}'


def one(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": schema}, "required": ["k"], **more}


TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
}
ODD: dict[str, tuple[Any, str]] = {
    "none": (None, ""),
    "empty": ({}, ""),
    "boolean": (True, ""),
    "object without properties": ({"type": "object"}, ""),
    "not an object": ({"type": "string"}, ""),
    "no type": (one({}), "¤<k>any¤</k>"),
    "free object": (one({"type": "object"}), '¤<k>{"a": 1}¤</k>'),
    "map": (one({"type": "object", "additionalProperties": {"type": "string"}}), '¤<k>{"a": "b"}¤</k>'),
    "additional properties": (one({"type": "string"}, additionalProperties=True), "¤<k>x¤</k>"),
    "pattern properties": (one({"type": "string"}, patternProperties={"a": {}}), "¤<k>x¤</k>"),
    "array of anything": (one({"type": "array"}), "¤<k>¤<item>x¤</item>¤</k>"),
    "pattern, format, length": (one({"type": "string", "pattern": "^a$", "format": "date", "minLength": 3}),
                                "¤<k>a¤</k>"),
    "nullable": (one({"type": "integer", "nullable": True}), "¤<k>null¤</k>"),
    "type list": (one({"type": ["integer", "null"]}), "¤<k>5¤</k>"),
    "allOf": (one({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}},
                             {"properties": {"b": {"type": "boolean"}}}]}),
              "¤<k>¤<a>1¤</a>¤<b>true¤</b>¤</k>"),
    "required but unknown": (one({"type": "string"}, required=["k", "z"]), "¤<k>x¤</k>"),
    "unknown type": (one({"type": "date"}), "¤<k>x¤</k>"),
    "bad reference": (one({"$ref": "#/$defs/Z"}), "¤<k>x¤</k>"),
    "foreign reference": (one({"$ref": "https://example.org/s.json"}), "¤<k>x¤</k>"),
    "reference": (one({"$ref": "#/$defs/T"}, **{"$defs": {"T": TREE}}),
                  "¤<k>¤<name>a¤</name>¤<kids>¤<item>¤<name>b¤</name>¤</item>¤</kids>¤</k>"),
    "root reference": ({"$ref": "#/definitions/R", "definitions": {"R": one({"type": "integer"})}}, "¤<k>1¤</k>"),
    "cycle": ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, ""),
    "enum of objects": (one({"enum": [{"a": 1}]}), "¤<k>x¤</k>"),
    "enum of several types": (one({"enum": [1, None, True, "s"]}), "¤<k>null¤</k>"),
    "impossible bounds": (one({"type": "integer", "minimum": 3, "maximum": 1}), "¤<k>2¤</k>"),
    "impossible number of items": (one({"type": "array", "items": {}, "minItems": 3, "maxItems": 1}), "¤<k>¤</k>"),
    "enum with a marker": (one({"enum": ["a" + NAMESPACE, "b"]}), "¤<k>b¤</k>"),
    "const": (one({"const": "only"}), "¤<k>only¤</k>"),
    "properties no object": ({"type": "object", "properties": []}, ""),
    "conditions": (one({"type": "string"}, **{"if": {"properties": {}}, "then": False, "not": {}}), "¤<k>x¤</k>"),
    "odd names": ({"type": "object", "properties": {"$top": {"type": "integer"}, "größe": {"type": "number"}}},
                  "¤<$top>1¤</$top>¤<größe>1.5¤</größe>"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_every_schema_becomes_a_grammar_that_accepts_what_fits(compiler: Any, name: str) -> None:
    schema, arguments = ODD[name]
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    grammar = output_grammar(tiny(), starts_in_reasoning=False, tools=tools, tool_choice="required")
    assert grammar is not None
    text = f'¤<tool_call>\n¤<invoke name="f">{arguments}¤</invoke>\n¤</tool_call>'.replace("¤", NAMESPACE)
    assert accepts(compiler, grammar, text)


def test_deep_schemas_end() -> None:
    deep: Any = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    assert json.dumps(simplified(deep))

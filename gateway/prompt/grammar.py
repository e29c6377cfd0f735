"""What the engine must hold the model to: forced tool calls and response formats as one engine.wire.Grammar.

| request                                   | grammar                                                    |
|-------------------------------------------|------------------------------------------------------------|
| tool_choice none, or auto                 | none of its own                                            |
| auto, and every function has strict: true | free text; a tool-call block, once begun, follows schemas  |
| tool_choice required, or a named function | a tool-call block, arguments typed by schema               |
| response_format json_object / json_schema | JSON                                                       |
| response_format, and tools on auto        | a tool-call block, or JSON                                 |

The grammar applies after thinking. A prompt that ends inside thinking: from the end-of-thinking token on (`after_ids`).
One that ends after it: at once. Adaptive: the grammar itself begins with a thought, or its end marker, or nothing.

The types are those of xgrammar: "json_schema", and "structural_tag" with its `minimax_m3_xml` style for arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.wire import Grammar
from gateway.errors import ApiError
from gateway.prompt import markers
from gateway.prompt.checkpoint import Checkpoint
from gateway.prompt.tool_schema import BadKey, simplified

Format = dict[str, Any]
MAX_WHITESPACE: Final = 1
"""White space in a row that JSON and arguments may hold: a model that likes it would fill the answer with it."""
_ANY_OBJECT: Final[Format] = {"type": "object"}


def output_grammar(
    checkpoint: Checkpoint,
    *,
    starts_in_reasoning: bool | None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    parallel: bool = True,
    response_format: Mapping[str, Any] | None = None,
) -> Grammar | None:
    """`tools`, `tool_choice`, `response_format`: as in the request. None: the model is free.

    Raises ApiError: invalid_value (tool_choice, response_format), invalid_schema (a schema that is no object)."""
    wanted = _chosen(tools or (), tool_choice)
    if wanted is not None:
        return _grammar(
            checkpoint, _block(wanted, parallel and not isinstance(tool_choice, Mapping)), starts_in_reasoning
        )
    schema = _response_schema(response_format)
    offered = tools if tools and tool_choice in (None, "auto") else None
    if schema is None:
        strict = offered is not None and all(t["function"].get("strict") is True for t in offered)
        return _when_called(checkpoint, offered, parallel, starts_in_reasoning) if offered and strict else None
    json_text: Format = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}
    if offered:
        either = {"type": "or", "elements": [_block(_numbered(offered), parallel), json_text]}
        return _grammar(checkpoint, either, starts_in_reasoning)
    if starts_in_reasoning is None and checkpoint.think_end_id is not None:
        return _grammar(checkpoint, json_text, None)
    return Grammar("json_schema", _json(schema), _after(checkpoint, starts_in_reasoning))


def _when_called(
    checkpoint: Checkpoint, tools: Sequence[Mapping[str, Any]], parallel: bool, starts_in_reasoning: bool | None
) -> Grammar | None:
    """Any text, thinking included when the model decides about it; calls by their schemas. None when a schema cannot
    be held to: the request did not insist on a call, so it is served all the same."""
    try:
        block = _block(_numbered(tools), parallel)
    except ApiError:
        return None
    form = {
        "type": "triggered_tags",
        "triggers": [f"{markers.NAMESPACE}<tool_call>"],
        "tags": [block],
        "stop_after_first": not parallel,
    }
    return _grammar(checkpoint, form, False if starts_in_reasoning is None else starts_in_reasoning)


def _numbered(tools: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    return [(i, t["function"]) for i, t in enumerate(tools)]


def _chosen(
    tools: Sequence[Mapping[str, Any]], tool_choice: str | Mapping[str, Any] | None
) -> list[tuple[int, Mapping[str, Any]]] | None:
    """(position, function) of the tools one of which must be called; None when none must."""
    if tool_choice in (None, "none", "auto"):
        return None
    if tool_choice == "required":
        if not tools:
            raise ApiError("invalid_value", "tool_choice is required, but there are no tools", param="tool_choice")
        return _numbered(tools)
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ApiError(
            "invalid_value",
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        )
    found = [(i, f) for i, f in _numbered(tools) if f.get("name") == name]
    if not found:
        raise ApiError(
            "invalid_value", f"tool_choice names {name!r}, which is not among tools", param="tool_choice.function.name"
        )
    return found[:1]


def _block(functions: Sequence[tuple[int, Mapping[str, Any]]], several: bool) -> Format:
    calls = []
    for i, function in functions:
        param = f"tools[{i}].function.parameters"
        try:
            schema = simplified(function.get("parameters"))
        except BadKey as e:
            raise ApiError("invalid_schema", f"{param}: {e}", param=param) from None
        calls.append(
            {
                "type": "tag",
                "begin": f'{markers.NAMESPACE}<invoke name="{function["name"]}">',
                "content": {
                    "type": "json_schema",
                    "json_schema": schema,
                    "style": "minimax_m3_xml",
                    "max_whitespace_cnt": MAX_WHITESPACE,
                },
                "end": f"{markers.NAMESPACE}</invoke>\n",
            }
        )
    return {
        "type": "tag",
        "begin": f"{markers.NAMESPACE}<tool_call>\n",
        "content": {
            "type": "tags_with_separator",
            "tags": calls,
            "separator": "",
            "at_least_one": True,
            "stop_after_first": not several,
        },
        "end": f"{markers.NAMESPACE}</tool_call>",
    }


def _response_schema(response_format: Mapping[str, Any] | None) -> Format | None:
    kind = (response_format or {}).get("type", "text")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        raise ApiError(
            "invalid_value",
            f"response_format.type is {kind!r}; it must be text, json_object or json_schema",
            param="response_format.type",
        )
    holder = response_format.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, Mapping) else None
    if not isinstance(schema, Mapping):
        raise ApiError(
            "invalid_schema",
            "response_format.json_schema.schema must be a JSON schema object",
            param="response_format.json_schema.schema",
        )
    return dict(schema)


def _after(checkpoint: Checkpoint, starts_in_reasoning: bool | None) -> tuple[int, ...] | None:
    return (checkpoint.think_end_id,) if starts_in_reasoning and checkpoint.think_end_id is not None else None


def _json(value: Any) -> str:
    """Numbers of any size, since schemas hold them."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        raise ApiError(
            "invalid_schema", "a JSON schema of this request is nested too deeply or holds a number that JSON cannot"
        ) from None


def _grammar(checkpoint: Checkpoint, form: Format, starts_in_reasoning: bool | None) -> Grammar:
    if starts_in_reasoning is None and checkpoint.think_end_id is not None:
        thought = {
            "type": "tag",
            "begin": markers.THINK_START,
            "content": {"type": "any_text"},
            "end": markers.THINK_END,
        }
        skipped = {"type": "const_string", "value": markers.THINK_END}
        first = {"type": "optional", "content": {"type": "or", "elements": [thought, skipped]}}
        form = {"type": "sequence", "elements": [first, form]}
    text = _json({"type": "structural_tag", "format": form})
    return Grammar("structural_tag", text, _after(checkpoint, starts_in_reasoning))

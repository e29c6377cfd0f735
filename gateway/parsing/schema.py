"""What a tool's JSON schema says about one value: which JSON types it may have, and the schemas below it.

Only what typing of arguments needs: type, enum/const, properties, items, additionalProperties, local $ref, and the
union over anyOf/oneOf/allOf. An unknown or odd schema says nothing, and never raises. Nothing is validated here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_MAX_HOPS: Final = 16
"""References and unions followed from one node; a cycle ends here."""
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_NAMES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


class Schema:
    """A view on one node. `kinds` is empty when the schema does not say."""

    __slots__ = ("_nodes", "_root", "kinds")

    def __init__(self, node: Any, root: Any = None) -> None:
        self._root = node if root is None else root
        self._nodes = list(_alternatives(node, self._root))
        self.kinds = frozenset(k for n in self._nodes for k in _kinds(n))

    def property(self, key: str) -> Schema | None:
        """None when nothing is said about this key."""
        for node in self._nodes:
            properties = node.get("properties")
            if isinstance(properties, Mapping) and key in properties:
                return Schema(properties[key], self._root)
        for node in self._nodes:
            if isinstance(node.get("additionalProperties"), Mapping):
                return Schema(node["additionalProperties"], self._root)
        return None

    def names(self, key: str) -> bool:
        """Whether the schema lists this property by name."""
        return any(isinstance(n.get("properties"), Mapping) and key in n["properties"] for n in self._nodes)

    def items(self) -> Schema:
        for node in self._nodes:
            if isinstance(node.get("items"), Mapping):
                return Schema(node["items"], self._root)
        return Schema({})


def _alternatives(node: Any, root: Any) -> Iterator[Mapping[str, Any]]:
    queue: list[Any] = [node]
    for _ in range(_MAX_HOPS):
        if not queue:
            return
        one = queue.pop(0)
        if not isinstance(one, Mapping):
            continue
        yield one
        if isinstance(one.get("$ref"), str):
            queue.append(_resolve(one["$ref"], root))
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(one.get(word), (list, tuple)):
                queue += one[word]


def _resolve(ref: str, root: Any) -> Any:
    node = root
    if not ref.startswith("#"):
        return None
    for step in ref[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _kinds(node: Mapping[str, Any]) -> Iterator[str]:
    kind = node.get("type")
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, (list, tuple)):
        yield from (k for k in kind if isinstance(k, str))
    else:
        values = (
            node["enum"] if isinstance(node.get("enum"), (list, tuple)) else [node["const"]] if "const" in node else []
        )
        yield from ("null" if v is None else _NAMES.get(type(v), "string") for v in values)
        if "properties" in node:
            yield "object"
        if "items" in node or "prefixItems" in node:
            yield "array"
    if node.get("nullable") is True:
        yield "null"


def typed(text: str, kinds: frozenset[str]) -> Any:
    """A leaf's text as the JSON value its schema asks for; else as JSON of any type; else as the text itself."""
    bare = text.strip()
    if "boolean" in kinds and bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    if "null" in kinds and (bare == "null" or (bare in ("", "None") and "string" not in kinds)):
        return None
    if kinds & {"integer", "number"} and _NUMBER.fullmatch(bare) and (number := _number(bare)) is not None:
        return number
    parsed = _json(bare)
    if parsed is not _NOT_JSON and (not kinds or _fits(parsed, kinds)):
        return parsed
    if "string" in kinds:
        return text
    if not bare and "object" in kinds:
        return {}
    if not bare and "array" in kinds:
        return []
    return text if parsed is _NOT_JSON else parsed


_NOT_JSON: Final = object()


def _number(text: str) -> int | float | None:
    """None for what has no finite value: JSON could not say it."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not math.isfinite(value):
            return None
        whole = value.is_integer() and abs(value) < 2**53
        return int(value) if whole and "." in text and "e" not in text.lower() else value


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _fits(value: Any, kinds: frozenset[str]) -> bool:
    if value is None:
        return "null" in kinds
    name = _NAMES[type(value)]
    return name in kinds or (name == "integer" and "number" in kinds)


ANY: Final = Schema({})
"""Says nothing."""

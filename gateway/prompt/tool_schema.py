"""A tool's JSON schema in the dialect that the constrained tool-call syntax understands.

The syntax has fixed names for members and text for leaves, so: free-form objects and values without a type are text
(the parser reads JSON out of it); patterns, formats and lengths of strings, additional properties and conditions are
left out. What is kept: types, properties and required, items and their number, enum and const, bounds of numbers,
unions, nullable, local references, also recursive ones. The result never says more than the schema did."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.prompt import markers

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_TYPES: Final = ("string", "number", "integer", "boolean", "null", "object", "array")
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_REF: Final = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_KEY: Final = re.compile(r"[^\s<>/][^\s>]*")
_MAX_DEPTH: Final = 32


class BadKey(ValueError):
    """A property name that the tool-call syntax cannot carry."""


def simplified(parameters: Any) -> dict[str, Any]:
    """The schema of a tool's arguments: always an object. Raises BadKey."""
    root = parameters if isinstance(parameters, Mapping) else {}
    reader = _Reader(root)
    node = reader.node(root, 0)
    for _ in range(_MAX_DEPTH):
        target = reader.target(node.get("$ref"))
        if target is None:
            break
        node = reader.node(target, 0)
    if node.get("type") != "object":
        node = {"type": "object", "properties": {}}
    definitions = reader.definitions()
    return {**node, "$defs": definitions} if definitions else node


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._wanted: list[tuple[str, Any]] = []
        self._named: dict[int, str] = {}

    def target(self, ref: Any) -> Any:
        """What one of *our* references stands for."""
        return next((n for name, n in self._wanted if ref == f"#/$defs/{name}"), None)

    def definitions(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while len(out) < len(self._wanted):  # reading one may want more
            name, node = self._wanted[len(out)]
            out[name] = self.node(node, 0)
        return out

    def node(self, node: Any, depth: int) -> dict[str, Any]:
        if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
            return _TEXT
        if isinstance(node.get("$ref"), str):
            return self._reference(node["$ref"])
        if isinstance(node.get("allOf"), list):
            node = _all_of(node)
        for word in ("anyOf", "oneOf"):
            if isinstance(node.get(word), list) and node[word]:
                return _union([self.node(n, depth + 1) for n in node[word]])
        if "enum" in node or "const" in node:
            return _enumeration(node["enum"] if isinstance(node.get("enum"), list) else [node.get("const")])
        kinds = list(_kinds(node))
        return _union([self._typed(kind, node, depth) for kind in kinds]) if kinds else _TEXT

    def _reference(self, ref: str) -> dict[str, Any]:
        match = _REF.fullmatch(ref)
        place = self._root.get(match[1]) if match else None
        name = match[2].replace("~1", "/").replace("~0", "~") if match else ""
        if not isinstance(place, Mapping) or name not in place:
            return _TEXT
        target = place[name]
        if id(target) not in self._named:
            self._named[id(target)] = f"d{len(self._wanted)}"
            self._wanted.append((self._named[id(target)], target))
        return {"$ref": f"#/$defs/{self._named[id(target)]}"}

    def _typed(self, kind: str, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {"type": kind}
        if kind in ("number", "integer"):
            out |= _bounds(node)
        elif kind == "array":
            out["items"] = self.node(node.get("items"), depth + 1)
            counts = {k: node[k] for k in ("minItems", "maxItems") if isinstance(node.get(k), int) and node[k] >= 0}
            if counts.get("minItems", 0) <= counts.get("maxItems", math.inf):
                out |= counts
        elif kind == "object":
            properties = _mapping(node.get("properties"))
            if depth and not properties:
                return _TEXT  # any JSON object, as text
            for key in properties:
                if not _KEY.fullmatch(key):
                    raise BadKey(f"property name {key!r} cannot be written in this model's tool-call syntax")
            required = node.get("required")
            out["properties"] = {k: self.node(v, depth + 1) for k, v in properties.items()}
            needed = required if isinstance(required, list) else []
            out["required"] = [k for k in properties if k in needed]
        return out


def _kinds(node: Mapping[str, Any]) -> Iterator[str]:
    kind = node.get("type")
    for one in kind if isinstance(kind, list) else [kind]:
        if one in _TYPES:
            yield one
    if kind is None and "properties" in node:
        yield "object"
    elif kind is None and "items" in node:
        yield "array"
    if node.get("nullable") is True and kind != "null":
        yield "null"


def _bounds(node: Mapping[str, Any]) -> dict[str, int | float]:
    """Bounds of a number; none when no number can lie between them."""
    given = {k: node[k] for k in _BOUNDS if isinstance(node.get(k), (int, float)) and not isinstance(node[k], bool)}
    low = max((given[k] for k in ("minimum", "exclusiveMinimum") if k in given), default=-math.inf)
    high = min((given[k] for k in ("maximum", "exclusiveMaximum") if k in given), default=math.inf)
    return given if low < high or (low == high and not given.keys() & {"exclusiveMinimum", "exclusiveMaximum"}) else {}


def _union(options: list[dict[str, Any]]) -> dict[str, Any]:
    return options[0] if len(options) == 1 else {"anyOf": options}


def _enumeration(values: list[Any]) -> dict[str, Any]:
    plain = [v for v in values if v is None or isinstance(v, (str, int, float, bool))]
    plain = [v for v in plain if not isinstance(v, str) or markers.NAMESPACE not in v]
    return {"enum": plain} if plain else _TEXT


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _all_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """The parts laid over each other; properties and required are joined."""
    merged: dict[str, Any] = {}
    for part in [{k: v for k, v in node.items() if k != "allOf"}, *node["allOf"]]:
        if not isinstance(part, Mapping):
            continue
        both = {**_mapping(merged.get("properties")), **_mapping(part.get("properties"))}
        needed = [k for p in (merged, part) if isinstance(p.get("required"), list) for k in p["required"]]
        merged |= part
        merged |= ({"properties": both} if both else {}) | ({"required": needed} if needed else {})
    return {k: v for k, v in merged.items() if k != "allOf"}

"""One value of a tool call while it arrives: text becomes JSON, typed by schema, as early as that is safe.

A value is *live* when its JSON is written while it arrives, else it is built and written by its parent later.
Written while arriving: strings, objects and `<item>` arrays that the schema announces as such.
Held until closed: numbers, booleans, unions (their text decides), and everything the schema does not name, because a
repeated key means an array and only the end of the object tells.

Not here: tags and the stack of open values (tools.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, Literal

from gateway.parsing.schema import ANY, Schema, typed

Form = Literal["open", "string", "held", "object", "array"]
Write = Callable[[str], None]
ITEM: Final = "item"
_STRING: Final = frozenset({"string"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ARRAY: Final = frozenset({"array"})
_NULLABLE: Final = frozenset({"string", "null"})


def to_json(value: Any) -> str:
    """Compact JSON that is always encodable: lone surrogates, which the model may write as escapes, stay escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return json.dumps(value, separators=(",", ":"))


class Value:
    """`write` is None for a value that is not live."""

    __slots__ = (
        "_bare",
        "_first",
        "_late",
        "_parts",
        "_seen",
        "_start",
        "form",
        "key",
        "repeated",
        "schema",
        "write",
        "written",
    )

    def __init__(self, key: str, schema: Schema, write: Write | None, start: Callable[[], str] | None = None) -> None:
        self.key = key
        self.schema = schema
        self.write = write
        self.form: Form = "open"
        self.written = False
        """Some of its JSON is out."""
        self.repeated = False
        """One element of an array that is spelled by repeating its key."""
        self._start = start
        self._parts: list[str] = []
        self._bare = ""
        self._first = True
        self._seen: set[str] = set()
        self._late: dict[str, list[Any]] = {}

    # ------------------------------------------------------------------------------------------ text
    def text(self, text: str) -> bool:
        """Text between tags. False when it does not belong here: words between the members of an object."""
        if self.form == "open":
            kinds = self.schema.kinds
            self._parts.append(text)
            if kinds == _STRING:
                self._become_string()
            elif kinds == _NULLABLE:
                self._bare += text.strip()
                if not "null".startswith(self._bare):
                    self._become_string()
            elif not text.isspace():
                self.form = "held"
            return True
        if self.form == "string":
            self._emit(to_json(text)[1:-1], text)
            return True
        if self.form == "held":
            self._parts.append(text)
            return True
        return text.isspace()

    def raw_text(self) -> str:
        """The text so far of a value that is not live."""
        return "".join(self._parts)

    def _become_string(self) -> None:
        self.form = "string"
        if self.write is not None:
            self._emit('"' + to_json("".join(self._parts))[1:-1], "")
            self._parts.clear()

    def _emit(self, piece: str, raw: str) -> None:
        if self.write is None:
            self._parts.append(raw)
            return
        if not self.written:
            self.written = True
            piece = (self._start() if self._start else "") + piece
        self.write(piece)

    # ------------------------------------------------------------------------------------------ containers
    def takes(self, tag: str) -> bool:
        """Whether a tag opened here is a member or element of this value; becomes a container if it can."""
        if self.form == "open":
            kinds = self.schema.kinds
            if tag == ITEM and ("array" in kinds or not kinds):
                self._become("array")
            elif "object" in kinds or not kinds:
                self._become("object")
            elif "array" in kinds:  # the key itself is repeated, each time with one element
                self.write, self.schema, self.repeated = None, self.schema.items(), True
                self._become("object")
        return self.form in ("object", "array")

    def _become(self, form: Literal["object", "array"]) -> None:
        self.form = form
        self._parts.clear()
        if self.write is not None:
            self._emit("{" if form == "object" else "[", "")

    def begin(self) -> None:
        """The root: an object, and its brace is out at once."""
        self._become("object")

    def child(self, tag: str) -> Value:
        if self.form == "array":
            return Value(tag, self.schema.items() if tag == ITEM else ANY, self.write, self._separator)
        schema = self.schema.property(tag)
        live = self.write is not None and schema is not None and bool(schema.kinds) and tag not in self._seen
        return Value(tag, schema or ANY, self.write if live else None, lambda: self._member(tag))

    def adopt(self, child: Value) -> bool:
        """A child has closed. False when its value had to be dropped (a key given twice that is no array)."""
        key = child.key
        if child.written:
            child.finish()
            self._seen.add(key)
            return True
        value = child.build()
        if self.form == "array":
            if self.write is None:
                self._late.setdefault(ITEM, []).append(value)
            else:
                self.write(self._separator() + to_json(value))
            return True
        if key in self._seen:
            return False
        kinds = (self.schema.property(key) or ANY).kinds
        if kinds and "array" not in kinds:
            if self.write is not None:
                self.write(self._member(key) + to_json(value))
                self._seen.add(key)
                return True
            if key in self._late:
                return False
            self._late[key] = [value]
            return True
        self._late.setdefault(key, []).append([value] if child.repeated else value)
        return True

    def _separator(self) -> str:
        if self._first:
            self._first = False
            return ""
        return ","

    def _member(self, key: str) -> str:
        return self._separator() + to_json(key) + ":"

    # ------------------------------------------------------------------------------------------ the end
    def finish(self) -> None:
        """Closes the JSON of a live value that has begun."""
        assert self.write is not None
        if self.form == "string":
            self.write('"')
        elif self.form == "object":
            for key, value in self._merged().items():
                self.write(self._member(key) + to_json(value))
            self.write("}")
        else:
            self.write("]")

    def build(self) -> Any:
        """The value, when nothing of it is out."""
        if self.form == "object":
            return self._merged()
        if self.form == "array":
            return self._late.get(ITEM, [])
        text = "".join(self._parts)
        kinds = self.schema.kinds
        if self.form == "open" and not text.strip() and "string" not in kinds:
            if "object" in kinds:
                return {}
            if "array" in kinds:
                return []
        if kinds == _STRING or (not kinds and not text.strip()):
            return text
        value = typed(text, kinds)
        if kinds == _ARRAY and not isinstance(value, list):  # one element, its key repeated or not
            return typed(text, self.schema.items().kinds)
        return value

    def _merged(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, values in self._late.items():
            kinds = (self.schema.property(key) or ANY).kinds
            if "array" in kinds and (len(values) > 1 or not kinds & {"object", "string"}):
                out[key] = [v for one in values for v in (one if isinstance(one, list) else [one])]
            elif len(values) == 1:
                out[key] = values[0]
            else:
                out[key] = values
        return out

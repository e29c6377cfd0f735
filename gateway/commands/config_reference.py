"""`catalejo config-reference`: docs/configuration.md, made from the settings themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from gateway.config import Settings
from gateway.reload import reloadable

HEAD: Final = """# Configuration

Made by `catalejo config-reference`; descriptions stand in `gateway/**/settings.py`.

`catalejo gateway --config FILE` reads YAML. What is given nearer to the command wins: built-in defaults, then the file,
then the environment, then command line options. A wrong or unknown key stops the start and is named.
`catalejo gateway --config FILE --print-config` prints what holds, with secrets as stars.

Environment names are `CATALEJO_` and the key in capitals, with `__` between levels; lists and objects are JSON there. ↻: a
changed value holds after SIGHUP; all others need a restart ([operations](operations.md#reload)).
"""
TABLE: Final = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
BOUNDS: Final = (
    ("minimum", ">= {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "<= {}"),
    ("exclusiveMaximum", "< {}"),
    ("minItems", "at least {}"),
    ("maxItems", "at most {}"),
)


@dataclass(frozen=True)
class Field:
    """`path`: its name last; `section`: the model of what lies below it, if it is one, and `suffix` how that is written:
    [] for a list's entries, .NAME for those of a mapping. `loose`: it lies in one of those, and has no environment name."""

    path: tuple[str, ...]
    info: FieldInfo
    section: type[BaseModel] | None
    suffix: str
    loose: bool
    link: tuple[str, ...] = ()
    """Where the section is told."""

    @property
    def below(self) -> tuple[str, ...]:
        return (*self.path[:-1], self.path[-1] + self.suffix)

    @property
    def environment(self) -> str | None:
        """A list is JSON as a whole; a section has none, its fields have."""
        whole = self.section is None or self.suffix
        return "CATALEJO_" + "__".join(self.path).upper() if whole and not self.loose else None

    @property
    def reloaded(self) -> bool:
        plain = tuple(part.partition("[")[0] for part in self.path)
        return reloadable(("models", "", *plain[1:]) if plain[0] == "models" else plain)

    @property
    def description(self) -> str:
        own = " ".join((self.section.__doc__ or "").split()) if self.section else ""
        return self.info.description or own


def fields() -> Iterator[tuple[tuple[str, ...], list[Field]]]:
    """(path of a section, its fields), each section before those in it. What an entry of a list has in common with a section
    told before is not told again."""
    told: dict[type[BaseModel], tuple[str, ...]] = {}
    left: list[tuple[type[BaseModel], tuple[str, ...], bool]] = [(Settings, (), False)]
    while left:
        model, path, loose = left.pop(0)
        members: list[Field] = []
        below: list[tuple[type[BaseModel], tuple[str, ...], bool]] = []
        for name, info in model.model_fields.items():
            section, suffix = _section(info.annotation)
            field = Field((*path, name), info, section, suffix, loose)
            entry = loose or bool(suffix)
            if section is not None and section in told and entry:
                field = replace(field, link=told[section])
            elif section is not None:
                told[section] = field.below
                below.append((section, field.below, entry))
                field = replace(field, link=field.below)
            members.append(field)
        yield path, members
        left[:0] = below


def _section(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """(settings class that the annotation holds, suffix)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    origin = get_origin(annotation)
    own = "[]" if origin in (list, tuple) else ".NAME" if origin is dict else ""
    if own or origin in (Union, UnionType):
        for part in get_args(annotation):
            section, inner = _section(part)
            if section is not None:
                return section, own + inner
    return None, ""


def reference() -> str:
    """The whole page."""
    out = [HEAD]
    about: dict[tuple[str, ...], str] = {(): ""}
    for path, members in fields():
        about |= {f.link: f.description for f in members if f.link == f.below}
        text = f"{about[path]}\n\n" if about[path] else ""
        out.append(f"\n## {'.'.join(path) or 'Top level'}\n{text}{TABLE}")
        out += [_row(field) for field in members]
    return "".join(out)


def _row(field: Field) -> str:
    key = f"`{field.path[-1]}`"
    if field.environment is not None:
        key += f"<br>`{field.environment}`"
    meaning = field.description
    if field.link:
        name = ".".join(field.link)
        meaning += f" See [{name}](#{_anchor(name)})."
    if field.reloaded:
        meaning += " ↻"
    return f"| {key} | {_type(field)} | {_default(field)} | {meaning} |\n"


def _anchor(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c in "_-")


def _type(field: Field) -> str:
    if field.section is not None:
        return {"": "section", "[]": "list", ".NAME": "mapping"}[field.suffix]
    annotation: Any = field.info.annotation
    for constraint in field.info.metadata:
        annotation = _annotated(annotation, constraint)
    return _words(TypeAdapter(annotation).json_schema())


def _annotated(annotation: Any, constraint: Any) -> Any:
    # A bound belongs to the value, not to the None beside it.
    if get_origin(annotation) in (Union, UnionType):
        parts = [p if p is NoneType else Annotated[p, constraint] for p in get_args(annotation)]
        return Union[tuple(parts)]  # noqa: UP007 - made at run time
    return Annotated[annotation, constraint]


def _words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_words(s) for s in schema["anyOf"] if s.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{v}`" for v in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if kind == "array":
        kind = f"list of {_words(schema.get('items', {}))}"
    elif kind == "object":
        kind = f"name: {_words(schema.get('additionalProperties') or {})}"
    elif schema.get("format") == "password":
        kind = "secret"
    elif schema.get("format") in ("path", "file-path"):
        kind = "path"
    bounds = _length(schema) + [text.format(schema[name]) for name, text in BOUNDS if name in schema]
    return f"{kind} {', '.join(bounds)}".strip()


def _length(schema: dict[str, Any]) -> list[str]:
    match schema.get("minLength"), schema.get("maxLength"):
        case None, None:
            return []
        case 1, None:
            return ["(not empty)"]
        case least, most:
            return [f"({least or 0} to {most} characters)"]


def _default(field: Field) -> str:
    if field.section is not None and not field.suffix:
        return ""
    if field.info.is_required():
        return "required"
    extra = field.info.json_schema_extra
    if isinstance(extra, dict) and "default" in extra:
        return str(extra["default"])
    value = field.info.get_default(call_default_factory=True)
    if value is None:
        return ""
    plain = TypeAdapter(Any).dump_python(value, mode="json")
    return f"`{plain}`" if isinstance(plain, str) else f"`{json.dumps(plain)}`"

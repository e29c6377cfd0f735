"""`catalejo config-reference`: docs/configuration.md, made from the settings themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from gateway.config import Settings
from gateway.reload import reloadable

HEAD: Final = """# Configuration

Made by `catalejo config-reference`; change descriptions in `gateway/*/settings.py` and run `make docs` again.

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
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {}"),
    ("maxItems", "at most {}"),
)


@dataclass(frozen=True)
class Field:
    """`path`: of a section's fields, [] for entries of a list; `section`: the model of what lies below, if it is one."""

    path: tuple[str, ...]
    info: FieldInfo
    section: type[BaseModel] | None
    in_list: bool

    @property
    def environment(self) -> str | None:
        """None for what lies in a list: the list is JSON as a whole."""
        return None if self.in_list else "CATALEJO_" + "__".join(self.path).upper()


def fields(model: type[BaseModel] = Settings, path: tuple[str, ...] = (), in_list: bool = False) -> Iterator[Field]:
    """Every setting, a section before what is in it."""
    for name, info in model.model_fields.items():
        section, is_list = _section(info.annotation)
        inner = (*path, name)
        yield Field(inner, info, section, in_list)
        if section is not None:
            below = (*path, name + "[]") if is_list else inner
            yield from fields(section, below, in_list or is_list)


def _section(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """(settings class that the annotation holds, whether in a list)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    is_list = get_origin(annotation) is list
    if is_list or get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            section, inner = _section(part)
            if section is not None:
                return section, inner or is_list
    return None, False


def reference() -> str:
    """The whole page."""
    out = [HEAD]
    everything = list(fields())
    groups: dict[tuple[str, ...], list[Field]] = {}
    for field in everything:
        groups.setdefault(field.path[:-1], []).append(field)
    about = {_below(f): (f.section, f.info.description) for f in everything if f.section is not None}
    for path, members in groups.items():
        if path:
            section, description = about[path]
            out.append(f"\n## {'.'.join(path)}\n")
            text = description or " ".join((section.__doc__ or "").split()) if section else ""
            out.append(f"{text}\n\n" if text else "\n")
        else:
            out.append("\n## Top level\n\n")
        out.append(TABLE)
        out += [_row(f) for f in members]
    return "".join(out)


def _below(field: Field) -> tuple[str, ...]:
    is_list = _section(field.info.annotation)[1]
    return (*field.path[:-1], field.path[-1] + "[]") if is_list else field.path


def _row(field: Field) -> str:
    key = f"`{field.path[-1]}`"
    if field.environment is not None and (field.section is None or _section(field.info.annotation)[1]):
        key += f"<br>`{field.environment}`"
    meaning = field.info.description or ""
    if field.section is not None:
        name = ".".join(_below(field))
        meaning = f"{meaning} See [{name}](#{_anchor(name)}).".strip()
    if reloadable(tuple(part.removesuffix("[]") for part in field.path)) or _model_field(field.path):
        meaning += " ↻"
    return f"| {key} | {_type(field)} | {_default(field)} | {meaning} |\n"


def _model_field(path: tuple[str, ...]) -> bool:
    return path[0] == "models[]" and reloadable(("models", "", *path[1:]))


def _anchor(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c in "_-")


def _type(field: Field) -> str:
    if field.section is not None:
        return "list" if _section(field.info.annotation)[1] else "section"
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
    bounds = [text.format(schema[name]) for name, text in BOUNDS if name in schema]
    return f"{kind} {', '.join(bounds)}".strip()


def _default(field: Field) -> str:
    if field.section is not None and not _section(field.info.annotation)[1]:
        return ""
    if field.info.is_required():
        return "required"
    value = field.info.get_default(call_default_factory=True)
    if value is None:
        return ""
    plain = TypeAdapter(Any).dump_python(value, mode="json")
    return f"`{plain}`" if isinstance(plain, str) else f"`{json.dumps(plain)}`"

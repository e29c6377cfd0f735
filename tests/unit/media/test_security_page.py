"""docs/security.md states every default of the media room, and states it truly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway.media.settings import MediaSettings

PAGE = Path(__file__).parents[3] / "docs" / "security.md"


def fields(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def shown(name: str, value: Any) -> str:
    if name == "image_threads":
        return "usable CPUs"
    if isinstance(value, bool):
        return str(value).lower()
    if value in (None, {}, ()):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_the_table_holds_every_field_with_its_true_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {name: shown(name, value) for name, value in fields(MediaSettings())}

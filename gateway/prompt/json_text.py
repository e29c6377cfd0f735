"""JSON as chat templates expect it: like `json.dumps`, no HTML escaping, with twins (see shadow.py) passed through."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TO_ESCAPE: Final = re.compile("[^\x00-\x7f\ud800-\udfff]")


def dumps(
    value: Any,
    reveal: Callable[[str], str],
    *,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The text `json.dumps` gives for the revealed value, with twins still in place."""
    if sort_keys:
        value = _sorted(value, reveal)
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    return _TO_ESCAPE.sub(_escape, text) if ensure_ascii else text


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def _sorted(value: Any, reveal: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {k: _sorted(value[k], reveal) for k in sorted(value, key=lambda k: reveal(str(k)))}
    if isinstance(value, (list, tuple)):
        return [_sorted(v, reveal) for v in value]
    return value

"""Where the fixtures lie."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import preproc_rs

ROOT = Path(__file__).resolve().parents[2] / "fixtures" / "preproc"
MEDIA = ROOT / "media"
GOLDEN = ROOT / "golden"


def cases(kind: str) -> list[dict[str, Any]]:
    every = json.loads((MEDIA / "cases.json").read_text())["cases"]
    return [c for c in every if c["kind"] == kind]


def refusal(call: Callable[..., Any], *args: Any, **options: Any) -> preproc_rs.PreprocError | None:
    """The typed error of a call, or None when it succeeded; any other exception is the test's failure."""
    try:
        call(*args, **options)
    except preproc_rs.PreprocError as error:
        assert error.code in preproc_rs.ERROR_CODES  # noqa: PT017
        assert error.message  # noqa: PT017
        return error
    return None

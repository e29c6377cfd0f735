"""Results on disk: JSON (the whole document), CSV (one row per measured request), HTML."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import orjson

from loadtest.report.html import page
from loadtest.report.summary import SCHEMA


class ResultError(ValueError):
    """The file is not a result of this harness."""


def write(result: dict[str, Any], path: Path) -> None:
    """By suffix: .json, .csv or .html. Raises ResultError for another."""
    match path.suffix:
        case ".json":
            path.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
        case ".html":
            path.write_text(page(result), encoding="utf-8")
        case ".csv":
            rows = result["samples"]
            with path.open("w", newline="") as f:
                writer = csv.DictWriter(f, fieldnames=list(rows[0]) if rows else ["due"])
                writer.writeheader()
                writer.writerows(rows)
        case other:
            raise ResultError(f"{path.name}: {other or 'no suffix'} is not one of .json, .csv, .html")


def read(path: Path) -> dict[str, Any]:
    try:
        result = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as e:
        raise ResultError(f"{path}: {e}") from None
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise ResultError(f"{path}: not a {SCHEMA} document")
    return result

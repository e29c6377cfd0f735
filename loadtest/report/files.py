"""Results on disk: JSON (the whole document), CSV (one row per measured request), HTML, Prometheus text."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import orjson

from loadtest.report import push
from loadtest.report.html import page
from loadtest.report.summary import SCHEMA

SUFFIXES = (".json", ".csv", ".html", ".prom")
_COLUMNS = {"due", "session", "ttft", "tpot", "e2e", "error", "prompt_tokens", "cached_tokens", "output_tokens"}
_PARTS: dict[str, tuple[type[dict[str, Any]] | type[list[Any]], set[str]]] = {
    "verdict": (dict, {"valid", "reasons", "warnings"}),
    "config": (dict, {"scenario", "model", "seed"}),
    "load": (dict, {"mode", "rate", "concurrency", "duration_s"}),
    "host": (dict, set()),
    "requests": (dict, {"measured", "ok", "errors", "asked_per_s", "delivered_per_s", "most_concurrent"}),
    "latency_ms": (dict, {"ttft", "tpot", "e2e", "itl"}),
    "tokens": (dict, {"input", "cached_input", "output", "output_per_s", "input_per_s", "cache_hit_share"}),
    "client": (dict, {"send_lag_ms", "loop_lag_ms", "busiest_worker_cpu"}),
    "samples": (list, set()),
}


class ResultError(ValueError):
    """The file is not a result of this harness, or cannot be one; the message names the file and what is wrong."""


def check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ResultError(f"{path.name}: {path.suffix or 'no suffix'} is not one of {', '.join(SUFFIXES)}")


def write(result: dict[str, Any], path: Path) -> None:
    """By suffix. Raises ResultError for an unknown one, OSError."""
    check_suffix(path)
    match path.suffix:
        case ".json":
            path.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
        case ".html":
            path.write_text(page(result), encoding="utf-8")
        case ".csv":
            rows = result["samples"]
            with path.open("w", newline="", encoding="utf-8") as f:
                writer = csv.DictWriter(f, fieldnames=list(rows[0]) if rows else ["due"])
                writer.writeheader()
                writer.writerows(rows)
        case _:
            push.write(result, path)


def read(path: Path) -> dict[str, Any]:
    """Raises ResultError for a file that is missing, cut short, of another schema, or without a part that reports need."""
    try:
        result = orjson.loads(path.read_bytes())
    except OSError as e:
        raise ResultError(f"{path}: {e.strerror}") from None
    except orjson.JSONDecodeError as e:
        raise ResultError(f"{path}: not whole JSON ({e}); was it cut short?") from None
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise ResultError(f"{path}: not a {SCHEMA} document")
    for name, (kind, keys) in _PARTS.items():
        part = result.get(name)
        if not isinstance(part, kind):
            raise ResultError(f"{path}: {name} is missing or no {'object' if kind is dict else 'list'}")
        if lacking := {key for key in keys if key not in part}:
            raise ResultError(f"{path}: {name}.{min(lacking)} is missing")
    for number, row in enumerate(result["samples"]):
        if not isinstance(row, dict) or not set(row) >= _COLUMNS:
            raise ResultError(f"{path}: samples[{number}] is not a whole row")
    return result

"""`catalejo preprocess FILE`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final

VIDEO_FORMATS: Final = ("mp4", "webm", "mkv", "avi", "mpegts")


def run(file: Path, size_rule: str, as_json: bool, npz: Path | None) -> int:
    import numpy as np

    import preproc_rs

    def fail(text: str) -> int:
        print(f"catalejo: {file}: {text}", file=sys.stderr)  # noqa: T201
        return 2

    if size_rule not in ("area", "long_side"):
        return fail(f"unknown size rule {size_rule!r}; it must be area or long_side")
    try:
        data = file.read_bytes()
    except OSError as e:
        return fail(f"cannot be read: {e.strerror}")
    try:
        prepared, floats = _prepare(preproc_rs, data, size_rule)
    except preproc_rs.PreprocError as e:
        return fail(f"{e.code}: {e}")
    report = {
        "kind": prepared.kind,
        "width": prepared.width,
        "height": prepared.height,
        "resized_hw": list(prepared.resized_hw),
        "grid_thw": list(prepared.grid_thw),
        "tokens": prepared.tokens,
        "source_key": prepared.source_key,
        "hash": prepared.hash,
        "rows_sha256": hashlib.sha256(memoryview(floats.patches).cast("B")).hexdigest(),
        "ms": {k: round(v, 3) for k, v in prepared.ms.items()},
    }
    if npz is not None:
        try:
            np.savez(npz, patches=floats.patches, grid_thw=np.asarray(prepared.grid_thw))
        except OSError as e:
            return fail(f"{npz} cannot be written: {e.strerror}")
    if as_json:
        print(json.dumps(report))  # noqa: T201
    else:
        for key, value in report.items():
            print(f"{key:12} {value}")  # noqa: T201
    return 0


def _prepare(preproc_rs: Any, data: bytes, size_rule: str) -> tuple[Any, Any]:
    """(as the gateway sends it, with float32 rows)."""
    if preproc_rs.sniff(data) in VIDEO_FORMATS:
        return preproc_rs.prepare_video(data), preproc_rs.prepare_video(data, rows="f32")
    sent = preproc_rs.prepare_image(data, size_rule=size_rule)
    return sent, preproc_rs.prepare_image(data, size_rule=size_rule, rows="f32")

"""Where the fixtures lie."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2] / "fixtures" / "preproc"
MEDIA = ROOT / "media"
GOLDEN = ROOT / "golden"


def cases(kind: str) -> list[dict[str, Any]]:
    every = json.loads((MEDIA / "cases.json").read_text())["cases"]
    return [c for c in every if c["kind"] == kind]

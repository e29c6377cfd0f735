"""Where the shipped checkpoint is, without importing the engine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def tiny_checkpoint() -> Path:
    spec = find_spec("engine.checkpoints")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "tiny"


def check_checkpoint(path: Path) -> str | None:
    """A sentence when the folder cannot be one, else None."""
    if not path.is_dir():
        return f"there is no checkpoint folder {path}"
    missing = [n for n in ("config.json", "tokenizer.json") if not (path / n).is_file()]
    return f"{path} is no checkpoint: it lacks {', '.join(missing)}" if missing else None

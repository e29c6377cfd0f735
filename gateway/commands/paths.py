"""Where the shipped checkpoint is, without importing the engine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def _checkpoints() -> Path:
    spec = find_spec("engine.checkpoints")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def tiny_checkpoint() -> Path:
    return _checkpoints() / "tiny"


def default_checkpoint() -> Path:
    """The demo model when it ships with this build, else `tiny`."""
    demo = _checkpoints() / "demo" / "model"
    return demo if (demo / "config.json").is_file() else tiny_checkpoint()


def sample_picture() -> bytes | None:
    """The picture the demo model was made for."""
    path = _checkpoints() / "demo" / "sample.png"
    return path.read_bytes() if path.is_file() else None


def check_checkpoint(path: Path) -> str | None:
    """A sentence when the folder cannot be one, else None."""
    if not path.is_dir():
        return f"there is no checkpoint folder {path}"
    missing = [n for n in ("config.json", "tokenizer.json") if not (path / n).is_file()]
    return f"{path} is no checkpoint: it lacks {', '.join(missing)}" if missing else None

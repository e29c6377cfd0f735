"""`catalejo engine`: hands over to the engine's own command. The only place where the two packages meet."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from gateway.commands.paths import check_checkpoint, default_checkpoint


def run(model: Path | None, backend: str, host: str, port: int, token: str | None, context_length: int | None) -> int:
    if backend not in ("local", "sglang"):
        print(f"catalejo: unknown backend {backend!r}; it must be local or sglang", file=sys.stderr)  # noqa: T201
        return 2
    path = model or default_checkpoint()
    if problem := check_checkpoint(path):
        print(f"catalejo: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        module = import_module(f"engine.{backend}.cli")
    except ImportError as e:
        extra = "engine-local" if backend == "local" else "engine-sglang"
        remedy = f"pip install 'catalejo[{extra}]'"
        print(f"catalejo: the {backend} engine is not installed ({e}); {remedy}", file=sys.stderr)  # noqa: T201
        return 1
    code = module.run(model=path, host=host, port=port, token=token, context_length=context_length)
    return int(code or 0)

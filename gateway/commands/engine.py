"""`catalejo engine`: hands over to the engine's own command. The only place where the two packages meet."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from gateway.commands.paths import check_checkpoint, default_checkpoint


def run(
    model: Path | None,
    backend: str,
    host: str,
    port: int,
    token: str | None,
    context_length: int | None,
    more: list[str],
) -> int:
    if backend not in ("local", "sglang"):
        return _fail(f"unknown backend {backend!r}; it must be local or sglang", 2)
    path = model or default_checkpoint()
    # A name like org/name, which is no folder here, is the engine's to look up.
    if (path.is_absolute() or path.exists()) and (problem := check_checkpoint(path)):
        return _fail(problem, 2)
    try:
        module = import_module(f"engine.{backend}.cli")
    except ImportError as e:
        extra = "engine-local" if backend == "local" else "engine-sglang"
        return _fail(f"the {backend} engine is not installed ({e}); pip install 'catalejo[{extra}]'", 1)
    code = module.run_argv(more, model=path, host=host, port=port, token=token, context_length=context_length)
    return int(code or 0)


def _fail(text: str, code: int) -> int:
    print(f"catalejo: {text}", file=sys.stderr)  # noqa: T201
    return code

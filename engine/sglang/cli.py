"""`catalejo engine --backend sglang`: prints the SGLang command with M3's defaults and becomes it."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

from engine.sglang import command
from engine.sglang.hooks_model import CACHE_FLAGS
from engine.sglang.plugin import ADAPTERS

GROUP = "sglang.srt.plugins"


def run_argv(
    argv: list[str],
    *,
    model: Path,
    host: str = "127.0.0.1",
    port: int = 30000,
    token: str | None = None,
    context_length: int | None = None,
) -> int:
    """`argv`: any SGLang flag, and our own --dry-run. Does not return when SGLang starts."""
    dry = "--dry-run" in argv
    more = [word for word in argv if word != "--dry-run"]
    line, used = command.build(model, host, port, token, context_length, more, command.visible_gpus())
    for one in used:
        _say(f"default {one.flag}{'' if one.value is None else ' ' + one.value}: {one.reason}")
    _say(command.shown(line))
    if dry:
        return 0
    problem = conflict(more) or fault()
    if problem is not None:
        print(f"catalejo engine: {problem}", file=sys.stderr)  # noqa: T201
        return 1
    return _become(line)


def _become(line: list[str]) -> int:
    """The engine takes this process's place, signals and all."""
    return os.execv(line[0], line)  # noqa: S606


def conflict(flags: list[str]) -> str | None:
    """Why the plugin would refuse these flags, after a checkpoint was loaded for nothing."""
    chosen = [flag for flag in CACHE_FLAGS if any(word.split("=", 1)[0] == flag for word in flags)]
    if chosen:
        return (
            f"{' and '.join(chosen)}: this cache is not known to carry MiniMax-M3's index keys with K and V, and answers "
            "would be wrong without a sign of it; --enable-hierarchical-cache carries them"
        )
    return None


def fault() -> str | None:
    """Why SGLang would start without our plugin, or not at all."""
    if importlib.util.find_spec("sglang") is None:
        return "SGLang is not installed here; pip install 'catalejo[engine-sglang]'"
    if not any(e.value == "engine.sglang:register" for e in entry_points(group=GROUP)):
        return f"the plugin's entry point ({GROUP}) is not installed; pip install catalejo into this environment"
    allowed = os.environ.get("SGLANG_PLUGINS")
    names = {e.name for e in entry_points(group=GROUP) if e.value == "engine.sglang:register"}
    if allowed and not names & {a.strip() for a in allowed.split(",")}:
        return f"SGLANG_PLUGINS={allowed} leaves our plugin out; add {', '.join(sorted(names))}"
    from engine.sglang.plugin import sglang_version

    if (found := sglang_version()) not in ADAPTERS:
        return f"SGLang {found} has no adapter; made for {', '.join(sorted(ADAPTERS))}"
    return None


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201

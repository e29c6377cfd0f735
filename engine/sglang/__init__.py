"""The SGLang plugin (entry point `sglang.srt.plugins` = `engine.sglang:register`). Importing this imports nothing else."""

from __future__ import annotations


def register() -> None:
    """Called by SGLang in every process it starts, before work begins."""
    from engine.sglang.plugin import register as run

    run()

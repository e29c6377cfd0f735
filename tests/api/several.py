"""A gateway with several models, each with a mock engine of its own."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import ROOT, TINY, Stack
from tests.mock_engine import MockEngine

DEMO = ROOT / "engine/checkpoints/demo/model"
LOW = {"health_interval_s": 60, "breaker_failures": 1000}


@pytest.fixture(scope="session")
def next_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with another template: equal tokens, other prompts."""
    folder = tmp_path_factory.mktemp("next") / "tiny-next"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    template = folder / "chat_template.jinja"
    template.write_text("Next!" + template.read_text())
    return folder


class Three:
    """Models `m3`, `m3-next` (another template) and `small` (another tokenizer), one engine each."""

    def __init__(self, stack: Stack, engines: dict[str, MockEngine]) -> None:
        self.stack = stack
        self.engines = engines

    def counts(self) -> dict[str, int]:
        return {name: len(engine.requests()) for name, engine in self.engines.items()}

    def prompt(self, name: str) -> list[int]:
        return list(self.engines[name].requests()[-1]["ids"])


@asynccontextmanager
async def three(
    next_tiny: Path,
    routes: list[dict[str, Any]] | None = None,
    scripts: dict[str, Any] | None = None,
    per_model: dict[str, dict[str, Any]] | None = None,
    **settings: Any,
) -> AsyncIterator[Three]:
    scripts, per_model = scripts or {}, per_model or {}
    folders = {"m3": TINY, "m3-next": next_tiny, "small": DEMO}
    engines = {
        name: MockEngine(folder, scripts.get(name, [{"pieces": [f"I am {name}."]}])) for name, folder in folders.items()
    }
    for engine in engines.values():
        await engine.start()
    models = [
        {"name": name, "model_path": folder, "engines": [{"url": engines[name].url}], **per_model.get(name, {})}
        for name, folder in folders.items()
    ]
    try:
        options = {"models": models, "routes": routes or [], "routing": LOW, **settings}
        async with Stack(model_path=None, engines=[], **options) as stack:
            yield Three(stack, engines)
    finally:
        for engine in engines.values():
            await engine.stop()

"""One model as requests meet it: what makes its prompts, reads its answers, and reaches its engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from gateway.api.generation.pipeline import Pipeline
from gateway.routing.router import Router

if TYPE_CHECKING:
    from gateway.prompt import Checkpoint, PromptBuilder


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """defaults    sampling defaults of the checkpoint (generation_config.json), empty when they are not wanted
    tokenizer      digest of tokenizer.json: equal ones give every token id the same meaning
    """

    name: str
    checkpoint: Checkpoint
    builder: PromptBuilder
    router: Router
    pipeline: Pipeline
    defaults: Mapping[str, Any]
    tokenizer: bytes


def tokenizer_digest(folder: Path) -> bytes:
    return blake3((folder / "tokenizer.json").read_bytes()).digest()

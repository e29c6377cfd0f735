"""Other engines' kernels, for comparison only: imported from an unpacked wheel when one is given, never needed otherwise.

Only the kernel files are executed: the packages around them (server, registries, dozens of dependencies) are replaced by
the few names those files import. A module per engine, each with `load(folder)`, which gives its functions, and `Decode` and
`Prefill`, which call them on the benchmark's inputs by set number: `select`, `attend`, `step`, and what `more` names beside
those. measure.py times them; check.py proves without a GPU what can be proved there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


class PeerUnavailableError(RuntimeError):
    """The other engine's kernels cannot be used here; the text says why."""


def stand_in(name: str, path: Path | None = None, **names: Any) -> ModuleType:
    """A module of that name with these names only; with `path`, also a package whose real modules are found there."""
    module = ModuleType(name)
    module.__path__ = [] if path is None else [str(path)]  # type: ignore[attr-defined]
    vars(module).update(names)
    sys.modules[name] = module
    return module


def in_our_order(blocks: Tensor) -> Tensor:
    """Chosen blocks [G, T, K], best first -> [T, G, K], ascending, -1 last."""
    last = torch.iinfo(blocks.dtype).max
    ascending = torch.where(blocks < 0, last, blocks).transpose(0, 1).sort(-1).values
    return torch.where(ascending == last, -1, ascending)
